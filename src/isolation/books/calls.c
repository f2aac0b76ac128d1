/* Counts in this process's slot, and a gate before the count for when somebody measures a card. */
#include "books/calls.h"

#include "books/quiesce.h"
#include "books/slice_region.h"
#include "books/totals.h"
#include "slice/slice.h"

#include <stdatomic.h>
#include <stddef.h>

/* Calls that are out in the low half; in the high half how many there were. */
#define ONE_CALL (1ull << 32)

/* Where there is no slot nothing is allowed, but calls still come and go. */
static _Atomic uint64_t slotless;
/* This thread's calls that are out, and where they were counted. */
static __thread unsigned own_calls __attribute__((tls_model("initial-exec")));
static __thread _Atomic uint64_t *own_word __attribute__((tls_model("initial-exec")));

static _Atomic uint64_t *word(void)
{
	const int slot = slice_slot();

	return slot < 0 ? &slotless : &slice_region()->slots[slot].movement;
}

/* A slot that was taken from the living had its count emptied: less than none is none. */
static int32_t out_of(uint64_t movement)
{
	return (int32_t)(uint32_t)movement;
}

/* Who has calls out already goes on: the one who measures waits for all of them. */
static void enter_word(void)
{
	own_word = word();
	atomic_fetch_add(own_word, ONE_CALL + 1);
	while (quiesce_is_others()) {
		atomic_fetch_sub(own_word, 1);
		quiesce_wait();
		atomic_fetch_add(own_word, ONE_CALL + 1);
	}
}

void calls_begin(void)
{
	if (own_calls++)
		atomic_fetch_add(own_word, ONE_CALL + 1);
	else
		enter_word();
	totals_tell_calls();
}

void calls_end(void)
{
	own_calls--;
	atomic_fetch_sub(own_word, 1);
	totals_tell_calls();
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
		const int32_t of_slot = out_of(atomic_load(&region->slots[i].movement));

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
		sum += atomic_load(&region->slots[i].movement);
	return sum;
}

void calls_after_fork(void)
{
	atomic_store(&slotless, 0);
	own_calls = 0;
	own_word = NULL;
	quiesce_after_fork();
}
