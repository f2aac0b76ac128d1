#include "pool.h"

#include "ledger.h"
#include "memory.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

static struct pool *pools;

struct pool *pool_of(CUmemoryPool handle)
{
	struct pool *pool = (struct pool *)(void *)handle;

	return pool && pool->magic == POOL_MAGIC ? pool : NULL;
}

static struct pool *new_pool(struct device *device, uint64_t most_bytes)
{
	static uint64_t ids;
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool || (device && !ledger_hold(device))) {
		free(pool);
		return NULL;
	}
	pool->magic = POOL_MAGIC;
	pool->id = ++ids;
	pool->device = device;
	pool->most_bytes = most_bytes;
	for (int i = 0; i < 4; i++)
		pool->reuse[i] = 1;
	pool->next = pools;
	pools = pool;
	return pool;
}

struct pool *pool_default(struct device *device)
{
	if (!device->default_pool) {
		device->default_pool = new_pool(device, 0);
		if (device->default_pool)
			device->default_pool->is_default = true;
	}
	return device->default_pool;
}

struct pool *pool_of_host(void)
{
	static struct pool *made;

	if (!made) {
		made = new_pool(NULL, 0);
		if (made)
			made->is_default = true;
	}
	return made;
}

struct pool *pool_imported(struct device *device)
{
	struct pool *pool = new_pool(device, 0);

	if (pool)
		pool->is_imported = true;
	return pool;
}

struct pool *pool_current(struct device *device)
{
	return device->pool ? device->pool : pool_default(device);
}

/* GPU_SIMULATOR_POOL_EXACT=1: by a chunk, or by no more than is asked where that is more. */
static bool is_exact(void)
{
	return setting_number("GPU_SIMULATOR_POOL_EXACT", 0);
}

static uint64_t whole(uint64_t bytes, uint64_t block)
{
	return (bytes + block - 1) / block * block;
}

static uint64_t rounded(uint64_t bytes)
{
	return (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
}

/*
 * GPU_SIMULATOR_POOL_PIECE_MIB: the unused part of the first chunk lies in pieces of that size,
 * between what is used: it serves nothing larger, and cannot be given back.
 */
static uint64_t piece_bytes(void)
{
	return setting_number("GPU_SIMULATOR_POOL_PIECE_MIB", 0) << 20;
}

static uint64_t grown(const struct pool *pool, uint64_t used, uint64_t bytes)
{
	if (piece_bytes() && bytes > piece_bytes())
		used = pool->reserved_bytes + bytes;
	if (used <= pool->reserved_bytes)
		return pool->reserved_bytes;
	if (!is_exact())
		return whole(used, POOL_CHUNK_BYTES);
	if (used - pool->reserved_bytes <= POOL_CHUNK_BYTES)
		return pool->reserved_bytes + POOL_CHUNK_BYTES;
	return whole(used, MEMORY_BLOCK_BYTES);
}

bool pool_give_out(struct pool *pool, uint64_t bytes)
{
	uint64_t used = pool->used_bytes + rounded(bytes);
	uint64_t wanted = grown(pool, used, rounded(bytes));

	if (used < bytes || wanted < used || (pool->most_bytes && used > pool->most_bytes))
		return false;
	if (wanted > pool->reserved_bytes) {
		if (pool->device && !ledger_take(pool->device, wanted - pool->reserved_bytes))
			return false;
		pool->reserved_bytes = wanted;
	}
	pool->used_bytes = used;
	if (pool->reserved_bytes > pool->reserved_high)
		pool->reserved_high = pool->reserved_bytes;
	if (pool->used_bytes > pool->used_high)
		pool->used_high = pool->used_bytes;
	return true;
}

void pool_take_back(struct pool *pool, uint64_t bytes)
{
	pool->used_bytes -= rounded(bytes);
}

void pool_trim(struct pool *pool, uint64_t keep_bytes)
{
	uint64_t keep;

	if (keep_bytes >= pool->reserved_bytes)
		return;
	keep = whole(pool->used_bytes > keep_bytes ? pool->used_bytes : keep_bytes,
		     is_exact() ? MEMORY_BLOCK_BYTES : POOL_CHUNK_BYTES);
	if (piece_bytes() && pool->used_bytes && keep < POOL_CHUNK_BYTES)
		keep = POOL_CHUNK_BYTES;
	if (keep >= pool->reserved_bytes)
		return;
	if (pool->device)
		ledger_give(pool->device, pool->reserved_bytes - keep);
	pool->reserved_bytes = keep;
}

void pools_release_unused(struct device *device)
{
	for (struct pool *pool = pools; pool; pool = pool->next) {
		if (pool->device == device && !pool->is_ended)
			pool_trim(pool, pool->release_threshold);
	}
}

/* Places and types by number: the newer ones are not in every cuda.h. */
static bool is_possible(const CUmemPoolProps *properties)
{
	enum { NOWHERE = 0, MANAGED = 2 };
	const bool is_new = driver.cuda_version >= 13000;

	if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED &&
	    !(is_new && (int)properties->allocType == MANAGED))
		return false;
	switch ((int)properties->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return true;
	case CU_MEM_LOCATION_TYPE_HOST:
		return is_new && !properties->handleTypes;
	case NOWHERE:
		return (int)properties->allocType == MANAGED;
	default:
		return false;
	}
}

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties)
{
	struct device *device = NULL;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !properties || !is_possible(properties))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		device = driver_device(properties->location.id);
		if (!device)
			return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	}
	struct pool *pool = new_pool(device, properties->maxSize);
	if (!pool)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	pool->handle_types = properties->handleTypes;
	*handle = (CUmemoryPool)(void *)pool;
	return driver_leave(CUDA_SUCCESS);
}

static void drop_pool(struct pool *pool)
{
	struct pool **place = &pools;

	while (*place != pool)
		place = &(*place)->next;
	*place = pool->next;
	if (pool->device && pool->device->pool == pool)
		pool->device->pool = NULL;
	pool->used_bytes = 0;
	pool_trim(pool, 0);
	if (pool->device)
		ledger_let_go(pool->device);
	pool->magic = 0;
	free(pool);
}

void pool_drop_default(struct device *device)
{
	if (!device->default_pool)
		return;
	drop_pool(device->default_pool);
	device->default_pool = NULL;
}

void pool_let_go(struct pool *pool)
{
	if (pool->is_ended && !memory_any_of(NULL, pool))
		drop_pool(pool);
}

/* Its memory goes when the last allocation from it is freed, as NVIDIA documents. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct pool *pool = pool_of(handle);
	if (!pool || pool->is_default)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	pool->magic = 0;
	pool->is_ended = true;
	if (pool->device && pool->device->pool == pool)
		pool->device->pool = NULL;
	pool_let_go(pool);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct pool *pool = pool_of(handle);
	if (!pool)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	pool_trim(pool, keep_bytes);
	return driver_leave(CUDA_SUCCESS);
}
