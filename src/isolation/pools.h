/* Stream-ordered memory: a pool is charged what it has reserved; see pools.c. */
#ifndef GPUSLICE_POOLS_H
#define GPUSLICE_POOLS_H

/* All may be called from any thread. */

/* Let the pools of a card give back what is unused, and the books follow. */
void pools_refresh(int card);

/* Work has been waited for: pools may have shrunk. Cheap when there are none. */
void pools_after_sync(void);

void pools_after_fork(void);

#endif
