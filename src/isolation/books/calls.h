/*
 * Calls to the driver that are reserved for and have not come back: whether this process's books
 * and the driver speak of the same moment.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread, but not under the region's lock. */

/* Around a call that takes or gives memory, in one thread. They nest. */
void calls_begin(void);
void calls_end(void);
/* Something has changed by itself. */
void calls_note_change(void);

/* False while calls are out; else the moment, until which the next call moves the books on. */
bool calls_are_back(uint64_t *moment);
/* The same while none is out but those of the calling thread. */
bool calls_are_own(uint64_t *moment);
bool calls_are_as_at(uint64_t moment);

void calls_after_fork(void);
