/*
 * The blocks in which the driver takes memory for a graph's allocation nodes.
 *
 * What the driver says of physical memory is where we start: nothing documents
 * that graphs use the same, so a launch that takes more teaches us.
 */
#include "memory/graphs.h"

#include "driver/driver.h"

#include <stdatomic.h>

/* Today's drivers' own, for one that does not say. */
#define USUAL_BLOCK (2ull * 1024 * 1024)

static _Atomic uint64_t blocks[LIMITS_CARDS]; /* 0: not asked */

uint64_t graphs_block(int card, CUdevice device)
{
	const CUmemAllocationProp property = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	uint64_t known = atomic_load(&blocks[card]);
	size_t block = 0;

	if (known)
		return known;
	if (!cuda.cuMemGetAllocationGranularity ||
	    cuda.cuMemGetAllocationGranularity(
		    &block, &property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS ||
	    !block)
		block = USUAL_BLOCK;
	/* What another thread has learnt meanwhile is better. */
	return atomic_compare_exchange_strong(&blocks[card], &known, block) ? block : known;
}

/* Each node is rounded up further than we thought, by no less than that. Powers of two. */
void graphs_learn_block(int card, CUdevice device, uint64_t more, uint32_t nodes)
{
	const uint64_t least = graphs_block(card, device) + (more + nodes - 1) / nodes;
	uint64_t block = USUAL_BLOCK;

	while (block < least)
		block *= 2;
	atomic_store(&blocks[card], block);
}
