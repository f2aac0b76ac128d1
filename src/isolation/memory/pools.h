/* Stream-ordered memory: a pool is charged what it has reserved; see memory/pools.c. */
#pragma once

#include "books/memory_charge.h"

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* Let the pools of a card give back what is unused, and the books follow. */
void pools_refresh(int card);

/* Only the books follow; false while another thread has a call out that changes a pool. */
bool pools_follow_card(int card);

/* Work has been waited for: pools may have shrunk. Cheap when there are none. */
void pools_after_sync(void);

void pools_after_fork(void);

/* One growth of a pool, between its two halves in the same thread. */
struct pool_growth {
	CUmemoryPool pool; /* NULL: it is not charged here */
	bool is_open;
	struct charge charge; /* the most that it should grow by */
	uint64_t asked;
	uint64_t before; /* what the pool had reserved */
};

/*
 * Reserves the most that the call can take; out of memory where that does not fit.
 * On success the pools are locked until the end.
 */
CUresult pools_begin_growth(struct pool_growth *growth, uint64_t bytes);
/* Settles with what was taken; the call's result, or out of memory if that was too much. */
CUresult pools_end_growth(struct pool_growth *growth, CUresult result, CUdeviceptr pointer,
			  CUstream stream);

/* From now on the pool is charged, or with `is_elsewhere` never, since another process or the host
 * has its memory. */
void pools_remember(CUmemoryPool pool, int card, bool is_elsewhere);
/* What was remembered; false for one that was not. */
bool pools_know(CUmemoryPool pool, int *card, bool *is_elsewhere);
/* Destroys it once nothing is out of it; until then it stays charged. */
CUresult pools_destroy(CUmemoryPool pool);

/* The driver's trim; its result. */
CUresult pools_trim(CUmemoryPool pool, size_t least);
