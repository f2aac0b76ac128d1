/*
 * Virtual time: one clock a node, in the memory that all processes share.
 *
 * It stands still at no time; `clock_speed_milli` of the node says how much
 * faster than CLOCK_MONOTONIC it runs (1000: as fast). The environment
 * variable GPU_SIMULATOR_CLOCK_SPEED (a number, 100: a hundred times real
 * time) sets that word when a process first calls cuInit.
 */
#ifndef GPUSIM_CLOCK_H
#define GPUSIM_CLOCK_H

#include "cuda_api.h"

#include "../costs.h"
#include "../state.h"
#include "steps.h"

#include <stdint.h>

struct clock_rate {
	uint64_t real_ns;    /* CLOCK_MONOTONIC at which ... */
	uint64_t virtual_ns; /* ... the virtual clock stood here */
	uint64_t speed_milli;
};

/* At the start of the node's engine area. Two rates, so that readers need no lock. */
struct clock_area {
	uint32_t layout; /* 0: no process has used it yet */
	uint32_t current;
	struct clock_rate rates[2];
	struct steps steps; /* while they are on, their clock is this one */
};

/* Both under the node's lock; safe in any process at any time. */
void clock_lay_out(struct gpusim_node *node);
void clock_follow_speed(struct gpusim_node *node);

/* Lock-free. */
uint64_t clock_now_ns(struct gpusim_node *node);
uint64_t clock_speed_milli(struct gpusim_node *node);

/*
 * Waits about `virtual_ns`, at most 5 ms of real time, and not a microsecond
 * too long when it is short; 0 is a short nap for who does not know how long.
 */
void clock_doze(struct gpusim_node *node, uint64_t virtual_ns);

/* What a call takes the host: time in steps would not know. Without locks of several processes. */
void clock_pay(struct gpusim_node *node, enum gpusim_cost cost);

/*
 * For tests and for a library under test that wants its own timers to run on
 * the simulated clock: now, and a sleep, in virtual nanoseconds. Without a
 * node both are CLOCK_MONOTONIC's.
 */
GPUSIM_EXPORT uint64_t gpusim_now_ns(void);
GPUSIM_EXPORT void gpusim_sleep_ns(uint64_t virtual_ns);
/* In steps: the same to the nanosecond, as a thread that looks at the clock all the while. */
GPUSIM_EXPORT void gpusim_spin_ns(uint64_t virtual_ns);

#endif
