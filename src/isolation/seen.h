/* What has been launched before, however much that is; see seen.c. */
#ifndef GPUSLICE_SEEN_H
#define GPUSLICE_SEEN_H

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* No lock: every launch asks. 0 is never there. */
bool seen_has(uint64_t what);
/* Without memory for more it stays unseen: its next launch is looked at as the first was. */
void seen_add(uint64_t what);
/* Addresses may be given out again. */
void seen_forget_all(void);

/* In a forked child: nothing was launched here. */
void seen_after_fork(void);

#endif
