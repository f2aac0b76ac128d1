/*
 * Calls to the driver that are reserved for and have not come back: whether this
 * process's books and the driver speak of the same moment, and whether a card that
 * is to be measured is still. See books/calls.c.
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
bool calls_are_as_at(uint64_t moment);

/* Calls of the container's processes that are out. */
uint32_t calls_out(void);
/* Are all calls of the container's processes that are out the calling thread's? */
bool calls_are_own(void);
/* Changes when any of them begins one or comes back. */
uint64_t calls_stamp(void);

/*
 * Holding back the container's other calls, so that a card's total changes by what one thread
 * does. Not under the region's lock, and not twice in one thread. Between these no other
 * thread of the container begins a call that takes or gives memory, and those that
 * were out have come back; both as far as a bounded wait helps. False: this process has no slot.
 */
bool calls_quiesce_others(void);
void calls_resume_others(void);
/* Before the end: has nobody else moved anything? Else the books must tell who did. */
bool calls_were_quiesced(void);

void calls_after_fork(void);
