/*
 * Time in steps, for tests that must not depend on the machine they run on.
 *
 * Threads that step together share a clock that stands still while any of them
 * runs and moves to the next end of a wait when all of them wait. So what they
 * compute costs no time but what clock_pay() says, and a run is the same on an
 * idle machine and on a loaded one. Threads that do not take part see that
 * clock and wait in real time for it.
 */
#ifndef GPUSIM_STEPS_H
#define GPUSIM_STEPS_H

#include "cuda_api.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { STEPS_MEMBERS = 32 };

struct steps_member {
	int32_t pid;         /* 0: free; may have died */
	uint32_t is_waiting; /* a futex */
	uint64_t until_ns;
};

/* Zero is sensible: nobody steps. */
struct steps {
	uint32_t layout; /* 0: the lock was never made */
	uint32_t is_on;
	uint32_t is_full; /* all who were announced are there */
	uint32_t wanted;
	pthread_mutex_t lock; /* shared and robust */
	uint64_t now_ns;
	struct steps_member members[STEPS_MEMBERS];
};

/* Under the node's lock. */
void steps_lay_out(struct steps *steps);

/* Lock-free. */
bool steps_is_on(const struct steps *steps);
uint64_t steps_now_ns(const struct steps *steps);

/* Is this thread one of those who step? */
bool steps_is_member(void);
/* Waits on the common clock. Members only. */
void steps_wait(struct steps *steps, uint64_t duration_ns);
/* By how much a thread wakes late: half to one and a half of the mean, the same in each run. */
uint64_t steps_lateness_ns(uint64_t mean_ns);

/* Returns when `count` threads of any processes have called it; `now_ns`: the clock so far. */
bool steps_join(struct steps *steps, uint32_t count, uint64_t now_ns);
/* The others go on; true for the last, after whom the clock is no longer this one. */
bool steps_leave(struct steps *steps);

/*
 * For tests: this thread and count - 1 others step together from here on, until
 * they call the second or die. 0, or -1 without a node or with too many.
 */
GPUSIM_EXPORT int gpusim_step_together(unsigned count);
GPUSIM_EXPORT void gpusim_step_apart(void);

#endif
