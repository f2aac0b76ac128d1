/*
 * Each process's count of calls that are out stands in its slot; one word in the region says who
 * holds the others back while it measures a card. No lock is held over the driver's call: it may
 * take as long as a compiler does, and may wait for work that waits for another process.
 * So whoever has waited long enough breaks it off for all, and what others
 * then take or give is told from it by the books.
 */
#include "books/calls.h"

#include "books/slice_region.h"
#include "books/totals.h"
#include "driver/timer.h"
#include "slice/slice.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

/* Calls that are out in the low half; in the high half how many there were. */
#define ONE_CALL (1ull << 32)

/*
 * For calls that are out. One that waits for the card is not waited for: after it
 * cost us this once, the short time has to do until all are back in time again.
 */
#define DRAIN_NS 200000000u
#define DRAIN_AGAIN_NS 20000000u
/* For the one who holds the others back: a large library is loaded within it. */
#define PATIENCE_NS 5000000000u
/* Each time after this long they are asked whether they live. */
#define ASK_AFTER_NS 10000000u
#define NAP_NS 20000u

/* Where there is no slot nothing is allowed, but calls still come and go. */
static _Atomic uint64_t slotless;
/* This thread's calls that are out, and where they were counted. */
static __thread unsigned own_calls __attribute__((tls_model("initial-exec")));
static __thread _Atomic uint64_t *own_word __attribute__((tls_model("initial-exec")));

static _Atomic uint64_t *word(void)
{
	const int slot = slice_slot();

	return slot < 0 ? &slotless : &slice_region()->slots[slot].calls;
}

/* A slot that was taken from the living had its count emptied: less than none is none. */
static int32_t out_of(uint64_t calls)
{
	return (int32_t)(uint32_t)calls;
}

/* What this thread has written into the region's word: its slot + 1, and a number above; 0:
 * nothing. */
static __thread uint64_t own_quiescing __attribute__((tls_model("initial-exec")));
static __thread bool was_drained __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t quiescings;
static atomic_bool was_in_vain; /* the last wait for calls that were out */

static _Atomic uint64_t *quiescer(void)
{
	return &slice_region()->quiescer;
}

static bool is_held_back(void)
{
	const uint64_t holder = atomic_load(quiescer());

	return holder && holder != own_quiescing;
}

/* Clears the dead, and with them their word and the calls that they had out. */
static void reap(void)
{
	if (!region_lock(slice_region()))
		return;
	region_reap(slice_region());
	region_unlock(slice_region());
}

/* Where that cannot be known it is not: who clears it looks again, under the lock. */
static bool is_of_the_dead(uint64_t holder)
{
	const uint32_t slot = (uint32_t)holder - 1;

	if (slot >= REGION_SLOTS)
		return false;
	const int locks = slot_lock_open();
	const bool is_alive = region_is_alive(slice_region(), slot, locks);

	close(locks);
	return !is_alive;
}

static void wait_for_quiescer(void)
{
	uint64_t holder = 0, since_ns = 0, asked_ns = 0;

	while (is_held_back()) {
		const uint64_t now_ns = timer_real_now_ns();
		uint64_t seen = atomic_load(quiescer());

		if (seen != holder) {
			holder = seen;
			since_ns = asked_ns = now_ns;
		} else if (now_ns - since_ns >= PATIENCE_NS) {
			atomic_compare_exchange_strong(quiescer(), &seen, 0);
		} else if (now_ns - asked_ns >= ASK_AFTER_NS) {
			asked_ns = now_ns;
			if (is_of_the_dead(seen))
				reap();
		}
		timer_real_nap(NAP_NS);
	}
}

/* Who has calls out already goes on: the one who measures waits for all of them. */
static void enter_word(void)
{
	own_word = word();
	atomic_fetch_add(own_word, ONE_CALL + 1);
	while (is_held_back()) {
		atomic_fetch_sub(own_word, 1);
		wait_for_quiescer();
		atomic_fetch_add(own_word, ONE_CALL + 1);
	}
}

void calls_begin(void)
{
	if (own_calls++)
		atomic_fetch_add(own_word, ONE_CALL + 1);
	else
		enter_word();
	totals_tell_calls(calls_out());
}

void calls_end(void)
{
	own_calls--;
	atomic_fetch_sub(own_word, 1);
	totals_tell_calls(calls_out());
}

void calls_note_change(void)
{
	atomic_fetch_add(word(), ONE_CALL);
}

bool calls_are_back(uint64_t *moment)
{
	*moment = atomic_load(word());
	return out_of(*moment) <= 0;
}

bool calls_are_as_at(uint64_t moment)
{
	return atomic_load(word()) == moment;
}

uint32_t calls_out(void)
{
	struct region *region = slice_region();
	uint32_t out = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		const int32_t of_slot = out_of(atomic_load(&region->slots[i].calls));

		if (of_slot > 0)
			out += (uint32_t)of_slot;
	}
	return out;
}

bool calls_are_own(void)
{
	return calls_out() <= own_calls;
}

uint64_t calls_stamp(void)
{
	struct region *region = slice_region();
	uint64_t sum = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++)
		sum += atomic_load(&region->slots[i].calls);
	return sum;
}

static void take_word(void)
{
	const uint64_t high = (uint64_t)(atomic_fetch_add(&quiescings, 1) + 1) << 32;
	uint64_t none = 0;

	own_quiescing = high | ((uint64_t)slice_slot() + 1);
	while (!atomic_compare_exchange_strong(quiescer(), &none, own_quiescing)) {
		wait_for_quiescer();
		none = 0;
	}
}

static void drain(void)
{
	const uint64_t begin_ns = timer_real_now_ns();
	const uint64_t most_ns = atomic_load(&was_in_vain) ? DRAIN_AGAIN_NS : DRAIN_NS;
	bool was_asked = false;

	while (!(was_drained = calls_are_own())) {
		const uint64_t gone_ns = timer_real_now_ns() - begin_ns;

		if (gone_ns >= most_ns)
			break;
		if (!was_asked && gone_ns >= ASK_AFTER_NS) {
			was_asked = true;
			reap();
		}
		timer_real_nap(NAP_NS);
	}
	atomic_store(&was_in_vain, !was_drained);
}

bool calls_quiesce_others(void)
{
	if (slice_slot() < 0)
		return false;
	take_word();
	drain();
	return true;
}

bool calls_were_quiesced(void)
{
	return was_drained && atomic_load(quiescer()) == own_quiescing;
}

void calls_resume_others(void)
{
	uint64_t holder = own_quiescing;

	atomic_compare_exchange_strong(quiescer(), &holder, 0);
	own_quiescing = 0;
}

void calls_after_fork(void)
{
	atomic_store(&slotless, 0);
	own_calls = 0;
	own_word = NULL;
	atomic_store(&quiescings, 0);
	atomic_store(&was_in_vain, false);
	own_quiescing = 0;
}
