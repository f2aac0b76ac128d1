/* Counts, and a gate before the count for when somebody measures. */
#include "movement.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

/* Calls that are out in the low half; in the high half how many there were. */
static _Atomic uint64_t movement;
static atomic_uint measuring;   /* threads that stopped the others */
static atomic_bool was_in_vain; /* the last wait for calls that were out */
/* This thread's calls that are out, and whether it measures. */
static __thread unsigned own_calls __attribute__((tls_model("initial-exec")));
static __thread bool is_own __attribute__((tls_model("initial-exec")));

#define ONE_MOVEMENT (1ull << 32)
#define OUT (ONE_MOVEMENT - 1)

/*
 * For calls that are out. One that waits for the card is not waited for: after it
 * cost us this once, the short time has to do until all are back in time again.
 */
#define DRAIN_NS 200000000u
#define DRAIN_AGAIN_NS 2000000u
/* At the gate: what is measured may itself wait for us. */
#define GATE_NS 1000000000u
#define NAP_NS 20000u

static uint64_t real_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void nap(void)
{
	const struct timespec time = {.tv_nsec = NAP_NS};

	nanosleep(&time, NULL);
}

/* Who has calls out already goes on: the one who measures waits for all of them. */
static void wait_at_gate(void)
{
	const uint64_t end_ns = real_now_ns() + GATE_NS;

	while (!own_calls && atomic_load(&measuring) && real_now_ns() < end_ns) {
		atomic_fetch_sub(&movement, 1);
		nap();
		atomic_fetch_add(&movement, ONE_MOVEMENT + 1);
	}
}

void movement_begin(void)
{
	atomic_fetch_add(&movement, ONE_MOVEMENT + 1);
	if (atomic_load(&measuring) && !is_own)
		wait_at_gate();
	own_calls++;
}

void movement_end(void)
{
	own_calls--;
	atomic_fetch_sub(&movement, 1);
}

void movement_note(void)
{
	atomic_fetch_add(&movement, ONE_MOVEMENT);
}

bool movement_is_still(uint64_t *moment)
{
	*moment = atomic_load(&movement);
	return (*moment & OUT) == 0;
}

bool movement_is_still_at(uint64_t moment)
{
	return atomic_load(&movement) == moment;
}

static bool are_others_out(void)
{
	return (atomic_load(&movement) & OUT) > own_calls;
}

void movement_stop_others(void)
{
	const uint64_t wait_ns = atomic_load(&was_in_vain) ? DRAIN_AGAIN_NS : DRAIN_NS;
	const uint64_t end_ns = real_now_ns() + wait_ns;

	is_own = true;
	atomic_fetch_add(&measuring, 1);
	while (are_others_out() && real_now_ns() < end_ns)
		nap();
	atomic_store(&was_in_vain, are_others_out());
}

void movement_let_others(void)
{
	atomic_fetch_sub(&measuring, 1);
	is_own = false;
}

void movement_after_fork(void)
{
	atomic_store(&movement, 0);
	atomic_store(&measuring, 0);
	atomic_store(&was_in_vain, false);
	own_calls = 0;
	is_own = false;
}
