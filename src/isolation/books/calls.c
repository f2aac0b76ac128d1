/* The process's count stands in its slot, so that it goes with the process. */
#include "books/calls.h"

#include "books/slice_region.h"

#include <stdatomic.h>
#include <stddef.h>

/* Calls that are out in the low half; in the high half how many there were. */
#define ONE_CALL (1ull << 32)

/* Where there is no slot nothing is allowed, but calls still come and go. */
static _Atomic uint64_t slotless;
/* This thread's calls that are out, and where they were counted. */
static __thread int32_t own_calls __attribute__((tls_model("initial-exec")));
static __thread _Atomic uint64_t *own_word __attribute__((tls_model("initial-exec")));

static _Atomic uint64_t *word(void)
{
	const int slot = slice_slot();

	return slot < 0 ? &slotless : &slice_region()->slots[slot].calls;
}

void calls_begin(void)
{
	if (own_calls++ == 0)
		own_word = word();
	atomic_fetch_add(own_word, ONE_CALL + 1);
}

void calls_end(void)
{
	own_calls--;
	atomic_fetch_sub(own_word, 1);
}

void calls_note_change(void)
{
	atomic_fetch_add(word(), ONE_CALL);
}

/* A slot that was taken from the living had its count emptied: less than none is none. */
static bool are_out(uint64_t calls, int32_t most)
{
	return (int32_t)(uint32_t)calls > most;
}

bool calls_are_back(uint64_t *moment)
{
	*moment = atomic_load(word());
	return !are_out(*moment, 0);
}

bool calls_are_own(uint64_t *moment)
{
	*moment = atomic_load(word());
	return !are_out(*moment, own_calls);
}

bool calls_are_as_at(uint64_t moment)
{
	return atomic_load(word()) == moment;
}

void calls_after_fork(void)
{
	atomic_store(&slotless, 0);
	own_calls = 0;
	own_word = NULL;
}
