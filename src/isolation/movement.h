/*
 * Whether this process's books and the driver speak of the same moment: calls to
 * the driver that are reserved for and have not come back. See movement.c.
 */
#ifndef GPUSLICE_MOVEMENT_H
#define GPUSLICE_MOVEMENT_H

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread, but not under the region's lock. */

/* Around a call that takes or gives memory, in one thread. They nest. */
void movement_begin(void);
void movement_end(void);
/* Something has changed by itself. */
void movement_note(void);

/* False while calls are out; else the moment, until which the next call moves the books on. */
bool movement_is_still(uint64_t *moment);
bool movement_is_still_at(uint64_t moment);

/*
 * Between these no other thread begins a call, and those that were out have come
 * back, as far as a short wait helps: what the card's total does then is the
 * calling thread's doing, or another process's.
 */
void movement_stop_others(void);
void movement_let_others(void);

void movement_after_fork(void);

#endif
