/* What has been launched before; see unasked/launched.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* No lock: every launch asks. 0 is never there. */
bool launched_has(uint64_t what);
/* Beyond a million it stays unseen: its next launch is looked at as the first was. */
void launched_add(uint64_t what);
/* Addresses may be given out again. */
void launched_forget_all(void);

/* In a forked child: nothing was launched here. */
void launched_after_fork(void);
