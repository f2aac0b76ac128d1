/* Small requests: parts of blocks that are taken from the card whole. */
#ifndef GPUSIM_BLOCK_H
#define GPUSIM_BLOCK_H

#include "memory.h"

/* All under the process's lock. */

/* Finds room for the memory's bytes in a block of its context. CUDA_ERROR_OUT_OF_MEMORY without. */
CUresult block_place(struct memory *memory);
/* The block goes back to the card with its last part. */
void block_give_back(struct memory *memory);
void block_extent(const struct block *block, uint64_t *address, uint64_t *offset);

#endif
