#include "block.h"

#include "ledger.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = MEMORY_BLOCK_BYTES / MEMORY_ALIGNMENT };

/* The first units of each part say how long it is; taken units are marked. */
struct block {
	uint64_t address;
	uint64_t offset; /* in the memory file */
	uint32_t taken;  /* units */
	uint32_t cursor; /* where the last search ended */
	struct context *context;
	struct block *next;
	bool is_taken[UNITS];
};

static struct block *blocks;

static uint32_t units_of(const struct memory *memory)
{
	return (uint32_t)((memory->bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT);
}

static struct block *add_block(struct context *context)
{
	struct block *block = calloc(1, sizeof(*block));
	void *address;

	if (!block || !ledger_take(context->device, MEMORY_BLOCK_BYTES)) {
		free(block);
		return NULL;
	}
	address = backing_map(MEMORY_BLOCK_BYTES, &block->offset);
	if (!address) {
		ledger_give(context->device, MEMORY_BLOCK_BYTES);
		free(block);
		return NULL;
	}
	block->address = (uint64_t)(uintptr_t)address;
	block->context = context;
	block->next = blocks;
	blocks = block;
	return block;
}

static void drop_block(struct block *block)
{
	struct block **place = &blocks;

	while (*place != block)
		place = &(*place)->next;
	*place = block->next;
	ledger_give(block->context->device, MEMORY_BLOCK_BYTES);
	backing_unmap((void *)(uintptr_t)block->address, MEMORY_BLOCK_BYTES, block->offset);
	free(block);
}

/* The first of `count` free units in a row between two places; UNITS when there are none. */
static uint32_t search(const struct block *block, uint32_t from, uint32_t to, uint32_t count)
{
	uint32_t free_in_row = 0;

	for (uint32_t unit = from; unit < to; unit++) {
		free_in_row = block->is_taken[unit] ? 0 : free_in_row + 1;
		if (free_in_row == count)
			return unit + 1 - count;
	}
	return UNITS;
}

static bool place_in(struct block *block, struct memory *memory, uint32_t count)
{
	uint32_t start = UNITS;

	if (UNITS - block->taken < count)
		return false;
	start = search(block, block->cursor, UNITS, count);
	if (start == UNITS)
		start = search(block, 0, UNITS, count);
	if (start == UNITS)
		return false;
	memset(&block->is_taken[start], true, count);
	block->taken += count;
	block->cursor = start + count;
	memory->block = block;
	memory->address = block->address + (uint64_t)start * MEMORY_ALIGNMENT;
	return true;
}

CUresult block_place(struct memory *memory)
{
	uint32_t count = units_of(memory);
	struct block *block;

	for (block = blocks; block; block = block->next) {
		if (block->context == memory->context && place_in(block, memory, count))
			return CUDA_SUCCESS;
	}
	block = add_block(memory->context);
	return block && place_in(block, memory, count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void block_give_back(struct memory *memory)
{
	struct block *block = memory->block;
	uint64_t start = (memory->address - block->address) / MEMORY_ALIGNMENT;

	memset(&block->is_taken[start], false, units_of(memory));
	block->taken -= units_of(memory);
	if (block->taken == 0)
		drop_block(block);
}

void block_extent(const struct block *block, uint64_t *address, uint64_t *offset)
{
	*address = block->address;
	*offset = block->offset;
}
