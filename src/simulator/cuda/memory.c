#include "memory.h"

#include "ledger.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

/* A stretch of the card from which small requests are served, as by the driver. */
struct block {
	uint64_t address;
	uint64_t parts; /* still in use */
	uint64_t cursor; /* everything below was handed out once */
	uint64_t offset; /* in the memory file */
	struct context *context;
	struct block *next;
};

static struct block *blocks;

/*
 * The driver takes whole blocks from the card. GPU_SIMULATOR_BLOCK_BYTES=512
 * makes it take what is asked instead, for tests that count bytes.
 */
static uint64_t block_bytes(void)
{
	static uint64_t bytes;
	const char *text;

	if (bytes)
		return bytes;
	text = getenv("GPU_SIMULATOR_BLOCK_BYTES");
	bytes = text ? strtoull(text, NULL, 10) : 0;
	if (bytes < MEMORY_ALIGNMENT || bytes & (bytes - 1))
		bytes = MEMORY_BLOCK_BYTES;
	return bytes;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

uint64_t memory_rounded(uint64_t bytes)
{
	return round_up(bytes, block_bytes());
}

static bool is_small(uint64_t bytes)
{
	return bytes <= block_bytes() / 2;
}

static struct block *add_block(struct context *context)
{
	struct block *block = calloc(1, sizeof(*block));
	uint64_t offset;
	void *address;

	if (!block || !ledger_take(context->device, block_bytes())) {
		free(block);
		return NULL;
	}
	address = backing_map(MEMORY_BLOCK_BYTES, &offset);
	if (!address) {
		ledger_give(context->device, block_bytes());
		free(block);
		return NULL;
	}
	block->address = (uint64_t)(uintptr_t)address;
	block->offset = offset;
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
	ledger_give(block->context->device, block_bytes());
	backing_unmap((void *)(uintptr_t)block->address, MEMORY_BLOCK_BYTES);
	free(block);
}

/* Simple on purpose: a block is filled once, and comes back when all of its parts have. */
static CUresult place_in_block(struct memory *memory)
{
	uint64_t bytes = round_up(memory->bytes, MEMORY_ALIGNMENT);
	struct block *block = blocks;

	while (block && (block->context != memory->context || block_bytes() - block->cursor < bytes))
		block = block->next;
	if (!block)
		block = add_block(memory->context);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->block = block;
	memory->address = block->address + block->cursor;
	block->cursor += bytes;
	block->parts++;
	return CUDA_SUCCESS;
}

static CUresult place_alone(struct memory *memory)
{
	uint64_t charged = memory_rounded(memory->bytes);
	uint64_t span = round_up(memory->bytes, MEMORY_BLOCK_BYTES);
	uint64_t offset;
	void *address;

	if (charged < memory->bytes || !ledger_take(memory->device, charged))
		return CUDA_ERROR_OUT_OF_MEMORY;
	address = backing_map(span, &offset);
	if (!address) {
		ledger_give(memory->device, charged);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memory->address = (uint64_t)(uintptr_t)address;
	memory->offset = offset;
	memory->span_bytes = span;
	memory->charged_bytes = charged;
	return CUDA_SUCCESS;
}

static void give_place(struct memory *memory)
{
	if (memory->block) {
		if (--memory->block->parts == 0)
			drop_block(memory->block);
		return;
	}
	if (memory->pool)
		pool_take_back(memory->pool, memory->bytes);
	if (memory->charged_bytes)
		ledger_give(memory->device, memory->charged_bytes);
	if (memory->span_bytes)
		backing_unmap((void *)(uintptr_t)memory->address, memory->span_bytes);
}

static struct memory *new_memory(struct device *device, uint64_t bytes, enum memory_kind kind)
{
	static uint64_t ids;
	struct memory *made = calloc(1, sizeof(*made));

	if (!made)
		return NULL;
	made->bytes = bytes;
	made->kind = kind;
	made->device = device;
	made->id = ++ids;
	return made;
}

CUresult memory_map_uncharged(struct device *device, uint64_t bytes, enum memory_kind kind,
			      struct memory **memory)
{
	struct memory *made = new_memory(device, bytes, kind);
	void *address;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->span_bytes = round_up(bytes, MEMORY_BLOCK_BYTES);
	address = backing_map(made->span_bytes, &made->offset);
	made->address = (uint64_t)(uintptr_t)address;
	if (!address || !memory_insert(made)) {
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*memory = made;
	return CUDA_SUCCESS;
}

CUresult memory_allocate(struct context *context, uint64_t bytes, enum memory_kind kind,
			 struct memory **memory)
{
	struct memory *made = new_memory(context->device, bytes, kind);
	CUresult result;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->context = context;
	result = is_small(bytes) ? place_in_block(made) : place_alone(made);
	if (result == CUDA_SUCCESS && !memory_insert(made)) {
		give_place(made);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS)
		*memory = made;
	else
		free(made);
	return result;
}

CUresult memory_release(struct memory *memory)
{
	memory_remove(memory);
	give_place(memory);
	free(memory);
	return CUDA_SUCCESS;
}

void memory_drop_all(struct context *context)
{
	struct memory *memory;

	while ((memory = memory_any_of(context, NULL)))
		memory_release(memory);
}

void memory_drop_pool(struct pool *pool)
{
	struct memory *memory;

	while ((memory = memory_any_of(NULL, pool)))
		memory_release(memory);
}

void memory_extent(const struct memory *memory, uint64_t *offset, uint64_t *span_bytes,
		   uint64_t *inside)
{
	const struct block *block = memory->block;

	*offset = block ? block->offset : memory->offset;
	*span_bytes = block ? MEMORY_BLOCK_BYTES : memory->span_bytes;
	*inside = block ? memory->address - block->address : 0;
}
