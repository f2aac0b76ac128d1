/*
 * Calls to the driver that are reserved for and have not come back: whether this
 * process's books and the driver speak of the same moment, and whether a card that
 * is to be watched is still. See movement.c.
 */
#ifndef GPUSLICE_MOVEMENT_H
#define GPUSLICE_MOVEMENT_H

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread, but not under the region's lock. */

/* Around a call that takes or gives memory, in one thread. They nest. */
void movement_begin(void);
void movement_end(void);
/* One call of the driver's that gives memory back; its result. */
#define MOVING(call)                                                                               \
	({                                                                                         \
		movement_begin();                                                                  \
		const __typeof__(call) moved = (call);                                             \
		movement_end();                                                                    \
		moved;                                                                             \
	})
/* Something has changed by itself. */
void movement_note(void);

/* False while calls are out; else the moment, until which the next call moves the books on. */
bool movement_is_still(uint64_t *moment);
bool movement_is_still_at(uint64_t moment);

/* Calls of the container's processes that are out. */
uint32_t movement_out(void);
/* Are all calls of the container's processes that are out the calling thread's? */
bool movement_is_own(void);
/* Changes when any of them begins one or comes back. */
uint64_t movement_of_all(void);

void movement_after_fork(void);

#endif
