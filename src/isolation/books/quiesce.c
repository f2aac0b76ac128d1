/*
 * One word in the region says who holds the others back; each process's count of calls that are
 * out stands in its slot. No lock is held over the driver's call: it may take as
 * long as a compiler does, and may wait for work that waits for another process.
 * So whoever has waited long enough breaks it off for all, and what others
 * then take or give is told from it by the books.
 */
#include "books/quiesce.h"

#include "books/calls.h"
#include "books/slice_region.h"
#include "driver/timer.h"
#include "slice/slice.h"

#include <stdatomic.h>
#include <stdint.h>

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

/* What this thread has written there: its slot + 1, and a number above; 0: nothing. */
static __thread uint64_t own __attribute__((tls_model("initial-exec")));
static __thread bool was_drained __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t number;
static atomic_bool was_in_vain; /* the last wait for calls that were out */

static _Atomic uint64_t *quiescer(void)
{
	return &slice_region()->quiescer;
}

bool quiesce_is_others(void)
{
	const uint64_t holder = atomic_load(quiescer());

	return holder && holder != own;
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
	struct slot_lock_look look = {0};

	if (slot >= REGION_SLOTS)
		return false;
	const bool is_alive = region_is_alive(&slice_region()->slots[slot], slot, &look);

	slot_lock_end(&look);
	return !is_alive;
}

void quiesce_wait(void)
{
	uint64_t holder = 0, since_ns = 0, asked_ns = 0;

	while (quiesce_is_others()) {
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

static void take_word(void)
{
	const uint64_t high = (uint64_t)(atomic_fetch_add(&number, 1) + 1) << 32;
	uint64_t none = 0;

	own = high | ((uint64_t)slice_slot() + 1);
	while (!atomic_compare_exchange_strong(quiescer(), &none, own)) {
		quiesce_wait();
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

void quiesce_begin(void)
{
	take_word();
	drain();
}

bool quiesce_was_kept(void)
{
	return was_drained && atomic_load(quiescer()) == own;
}

void quiesce_end(void)
{
	uint64_t holder = own;

	atomic_compare_exchange_strong(quiescer(), &holder, 0);
	own = 0;
}

void quiesce_after_fork(void)
{
	atomic_store(&number, 0);
	atomic_store(&was_in_vain, false);
	own = 0;
}
