#include "memory.h"

#include "block.h"
#include "ledger.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

uint64_t memory_rounded(uint64_t bytes)
{
	return round_up(bytes, MEMORY_BLOCK_BYTES);
}

static bool is_small(uint64_t bytes)
{
	return bytes <= MEMORY_BLOCK_BYTES / 2;
}

static bool take(const struct memory *memory, uint64_t bytes)
{
	return memory->kind == MEMORY_MANAGED ? ledger_take_managed(memory->device, bytes)
					      : ledger_take(memory->device, bytes);
}

static void give(const struct memory *memory, uint64_t bytes)
{
	if (memory->kind == MEMORY_MANAGED)
		ledger_give_managed(memory->device, bytes);
	else
		ledger_give(memory->device, bytes);
}

static CUresult place_alone(struct memory *memory)
{
	uint64_t charged = memory_rounded(memory->bytes);
	uint64_t span = round_up(memory->bytes, MEMORY_BLOCK_BYTES);
	uint64_t offset;
	void *address;

	if (charged < memory->bytes || !take(memory, charged))
		return CUDA_ERROR_OUT_OF_MEMORY;
	address = backing_map(span, &offset);
	if (!address) {
		give(memory, charged);
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
		block_give_back(memory);
		return;
	}
	if (memory->pool)
		pool_take_back(memory->pool, memory->bytes);
	if (memory->charged_bytes)
		give(memory, memory->charged_bytes);
	if (memory->span_bytes)
		backing_unmap((void *)(uintptr_t)memory->address, memory->span_bytes,
			      memory->offset);
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
	result = is_small(bytes) ? block_place(made) : place_alone(made);
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
	struct pool *pool = memory->pool;

	memory_remove(memory);
	give_place(memory);
	if (pool)
		pool_let_go(pool);
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
	uint64_t address = memory->address;

	*offset = memory->offset;
	*span_bytes = memory->span_bytes;
	if (memory->block) {
		block_extent(memory->block, &address, offset);
		*span_bytes = MEMORY_BLOCK_BYTES;
	}
	*inside = memory->address - address;
}
