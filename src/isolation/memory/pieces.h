/* Allocations out of pools that the program makes, and so may destroy first; see memory/pieces.c.
 */
#ifndef GPUSLICE_MEMORY_PIECES_H
#define GPUSLICE_MEMORY_PIECES_H

#include "driver/api.h"

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* A number for a pool that the program made; never given again, as the driver's handles are. */
uint64_t pieces_new_pool(void);
/* Allocated from it; 0: a pool that nobody can destroy. */
void pieces_add(uint64_t pool, CUdeviceptr pointer);

/* One that is being freed: taken out before the call, as the driver may give it out again. */
struct piece {
	uint64_t pool;   /* 0: none of ours */
	bool is_counted; /* the pool has ended, and waits for it */
	CUdeviceptr pointer;
};

void piece_take(struct piece *piece, CUdeviceptr pointer);
/* The driver would not free it: it is put back. */
void piece_put_back(const struct piece *piece);
/* It is gone once the stream has come this far; cuMemFree has waited already. */
void piece_freed_in(const struct piece *piece, CUstream stream);
void piece_freed(const struct piece *piece);

/* The pool was destroyed: `bytes` stay charged for what is out of it. False: nothing is. */
bool pieces_pool_ended(uint64_t pool, int card, uint64_t bytes);
/* Streams may have passed frees, or gone with their context. Cheap when no such pool is left. */
void pieces_follow(void);
void pieces_forget_context(CUcontext context);

void pieces_after_fork(void);

#endif
