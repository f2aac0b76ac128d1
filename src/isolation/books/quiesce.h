/*
 * Holding back the container's other calls: so that a card's total changes by what one thread does,
 * and by no other thread or process of the container. See books/quiesce.c.
 */
#pragma once

#include <stdbool.h>

/*
 * Not under the region's lock, and not twice in one thread. Between these no other
 * thread of the container begins a call that takes or gives memory, and those that
 * were out have come back; both as far as a bounded wait helps.
 */
void quiesce_begin(void);
void quiesce_end(void);

/* Before the end: has nobody else moved anything? Else the books must tell who did. */
bool quiesce_was_kept(void);

/* Does another thread of the container hold it back? Then this one's next call has to wait. */
bool quiesce_is_others(void);
/* Until it is over, or broken off because it goes on for too long or its process died. */
void quiesce_wait(void);

void quiesce_after_fork(void);
