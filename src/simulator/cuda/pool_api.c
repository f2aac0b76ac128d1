/* Pools' attributes, whose pool is whose, and allocation in stream order. */
#include "capture.h"
#include "import.h"
#include "memory.h"
#include "pool.h"
#include "stream.h"

#include "../costs.h"

#include <string.h>

/* The 64-bit attributes, by number; NULL for the others. */
static uint64_t *amount(struct pool *pool, CUmemPool_attribute attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->release_threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &pool->reserved_bytes;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &pool->reserved_high;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->used_bytes;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->used_high;
	default:
		return NULL;
	}
}

static int *reuse(struct pool *pool, CUmemPool_attribute attribute)
{
	return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
			       attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
		       ? &pool->reuse[attribute]
		       : NULL;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct pool *pool = pool_of(handle);
	if (!pool || !value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (amount(pool, attribute))
		memcpy(value, amount(pool, attribute), sizeof(uint64_t));
	else if (reuse(pool, attribute))
		memcpy(value, reuse(pool, attribute), sizeof(int));
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return driver_leave(result);
}

/* The high-water marks can only be set back: to 0, which means to now. */
static CUresult set_amount(struct pool *pool, CUmemPool_attribute attribute, uint64_t value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->release_threshold = value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		pool->reserved_high = pool->reserved_bytes;
		return value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		pool->used_high = pool->used_bytes;
		return value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	uint64_t number;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct pool *pool = pool_of(handle);
	if (!pool || !value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (reuse(pool, attribute)) {
		memcpy(reuse(pool, attribute), value, sizeof(int));
		return driver_leave(CUDA_SUCCESS);
	}
	memcpy(&number, value, sizeof(number));
	return driver_leave(set_amount(pool, attribute, number));
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
	return pool_of(handle) && (access || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
	const struct pool *pool = pool_of(handle);

	if (!pool || !flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = pool->device && location->id == pool->device->ordinal
			 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
			 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

static CUresult get_pool(CUmemoryPool *handle, CUdevice ordinal,
			 struct pool *(*find)(struct device *device))
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*handle = (CUmemoryPool)(void *)find(device);
	return driver_leave(*handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	return get_pool(pool, device, pool_default);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	return get_pool(pool, device, pool_current);
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	struct pool *pool = pool_of(handle);
	if (!pool || pool->device != device)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	device->pool = pool;
	return driver_leave(CUDA_SUCCESS);
}

/* The same for any place, since CUDA 13: a device, or the host. */
static bool is_place(const CUmemLocation *location, CUmemAllocationType type,
		     CUmemLocationType wanted)
{
	return location && location->type == wanted && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

static struct pool *host_pool; /* where the program set one */

static CUresult get_host_pool(CUmemoryPool *handle, bool is_default)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*handle = (CUmemoryPool)(void *)(host_pool && !is_default ? host_pool : pool_of_host());
	return driver_leave(*handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
				CUmemAllocationType type)
{
	if (is_place(location, type, CU_MEM_LOCATION_TYPE_HOST))
		return get_host_pool(pool, true);
	return is_place(location, type, CU_MEM_LOCATION_TYPE_DEVICE)
		       ? cuDeviceGetDefaultMemPool(pool, location->id)
		       : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	if (is_place(location, type, CU_MEM_LOCATION_TYPE_HOST))
		return get_host_pool(pool, false);
	return is_place(location, type, CU_MEM_LOCATION_TYPE_DEVICE)
		       ? cuDeviceGetMemPool(pool, location->id)
		       : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	if (is_place(location, type, CU_MEM_LOCATION_TYPE_HOST)) {
		if (!pool_of(pool) || pool_of(pool)->device)
			return CUDA_ERROR_INVALID_VALUE;
		host_pool = pool_of(pool);
		return CUDA_SUCCESS;
	}
	return is_place(location, type, CU_MEM_LOCATION_TYPE_DEVICE)
		       ? cuDeviceSetMemPool(location->id, pool)
		       : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult allocate_now(CUdeviceptr *address, size_t bytes, struct context *context,
			     struct pool *pool)
{
	struct memory *memory;
	CUresult result;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	static uint64_t growths;
	const uint64_t reserved = pool->reserved_bytes;

	if (!pool_give_out(pool, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (pool->reserved_bytes > reserved)
		driver_stall(gpusim_cost_at_times(COST_POOL_GROWTH_US, ++growths) * 1000);
	result = memory_map_uncharged(pool->device ? pool->device : context->device, bytes,
				      MEMORY_POOL, &memory);
	if (result != CUDA_SUCCESS) {
		pool_take_back(pool, bytes);
		return result;
	}
	memory->pool = pool;
	memory->context = context;
	*address = memory->address;
	return CUDA_SUCCESS;
}

/* With pool_handle NULL: from the device's current pool. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, const CUmemoryPool *pool_handle,
			 CUstream handle, enum default_stream null)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || bytes == 0 ||
	    (pool_handle && (!pool_of(*pool_handle) || pool_of(*pool_handle)->is_imported)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_find(context, handle, null, &stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	struct pool *pool =
		pool_handle ? pool_of(*pool_handle) : pool_current(stream->context->device);
	if (stream->capture)
		return driver_leave(pool && pool->device
					    ? capture_allocate(stream, pool->device, address, bytes)
					    : CUDA_ERROR_NOT_SUPPORTED);
	return driver_leave(allocate_now(address, bytes, context, pool));
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	return allocate(address, bytes, NULL, stream, LEGACY);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	return allocate(address, bytes, NULL, stream, PER_THREAD);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
				 CUstream stream)
{
	return allocate(address, bytes, &pool, stream, LEGACY);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
				      CUstream stream)
{
	return allocate(address, bytes, &pool, stream, PER_THREAD);
}

static CUresult release(CUdeviceptr address, CUstream handle, enum default_stream null)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_find(context, handle, null, &stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (stream->capture)
		return driver_leave(capture_release(stream, address));
	struct memory *memory = memory_at(address);
	if (!memory || (memory->kind != MEMORY_POOL && memory->kind != MEMORY_DEVICE &&
			memory->kind != MEMORY_GRAPH && memory->kind != MEMORY_POOL_IMPORTED))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (memory->kind == MEMORY_POOL_IMPORTED)
		return driver_leave(import_drop(memory));
	return driver_leave(memory->kind == MEMORY_GRAPH ? graph_memory_end(memory)
							 : memory_release(memory));
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	return release(address, stream, LEGACY);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
	return release(address, stream, PER_THREAD);
}
