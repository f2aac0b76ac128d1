/* cuMemAllocAsync and friends: every call that draws from a pool, makes one or ends it. */
#include "books/memory_limit.h"
#include "books/memory_charge.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "driver/cards.h"
#include "driver/stream.h"
#include "memory/pools.h"

/* The pool that cuMemAllocAsync draws from on this stream. */
static CUresult pool_of_stream(CUstream stream, struct pool_growth *growth)
{
	CUdevice device;
	CUresult result = device_of_stream(stream, &device);

	if (result != CUDA_SUCCESS)
		return result;
	result = card_find(device, &growth->charge.card);
	if (result != CUDA_SUCCESS)
		return result;
	if (growth->charge.card < 0 || !cuda.cuDeviceGetMemPool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuda.cuDeviceGetMemPool(&growth->pool, device);
	if (result == CUDA_SUCCESS)
		pools_remember(growth->pool, growth->charge.card, false);
	return result;
}

/* The pools that a device has without anybody making them. */
static bool is_pool_of_device(CUmemoryPool pool, CUdevice device)
{
	CUmemoryPool own;

	return (cuda.cuDeviceGetDefaultMemPool &&
		cuda.cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == pool) ||
	       (cuda.cuDeviceGetMemPool && cuda.cuDeviceGetMemPool(&own, device) == CUDA_SUCCESS &&
		own == pool);
}

/* Of a pool whose making was not seen; in doubt the stream's, so that nothing goes uncounted. */
static int card_of_pool(CUmemoryPool pool, CUstream stream)
{
	CUdevice device;
	int count = 0;

	if (cuda.cuDeviceGetCount && cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		count = 0;
	for (device = 0; device < count; device++)
		if (is_pool_of_device(pool, device))
			return card_of_device(device);
	return device_of_stream(stream, &device) == CUDA_SUCCESS ? card_of_device(device)
								 : CARD_FOREIGN;
}

/* Any other pool; none for one that is not charged here. A NULL is the driver's to refuse. */
static CUresult pool_itself(CUmemoryPool pool, CUstream stream, struct pool_growth *growth)
{
	bool is_elsewhere = !pool;

	if (pool && !pools_know(pool, &growth->charge.card, &is_elsewhere)) {
		growth->charge.card = card_of_pool(pool, stream);
		pools_remember(pool, growth->charge.card, false);
	}
	growth->pool = is_elsewhere ? NULL : pool;
	return CUDA_SUCCESS;
}

/*
 * `named` is the stream as the plain functions would name it. In a capture nothing is
 * allocated now: the graph is charged when it is launched.
 */
#define ALLOCATES_FROM(named, find, name, parameters, arguments)                                   \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct pool_growth growth = {0};                                                   \
                                                                                                   \
		ENTER_WITH(name, arguments);                                                       \
		if (!pointer || capture_has(named))                                                \
			return cuda.name arguments;                                                \
		const CUstreamCaptureMode mode = capture_exempt();                                 \
		CUresult result = find;                                                            \
                                                                                                   \
		if (result == CUDA_SUCCESS && growth.pool)                                         \
			result = pools_begin_growth(&growth, bytes);                               \
		if (result == CUDA_SUCCESS) {                                                      \
			capture_restore(mode);                                                     \
			result = cuda.name arguments;                                              \
			capture_exempt();                                                          \
		}                                                                                  \
		if (growth.is_open)                                                                \
			result = pools_end_growth(&growth, result,                                 \
						  result == CUDA_SUCCESS ? *pointer : 0, named);   \
		capture_restore(mode);                                                             \
		return result;                                                                     \
	}

#define ALLOCATES_FROM_STREAM(named, name)                                                         \
	ALLOCATES_FROM(named, pool_of_stream(named, &growth), name,                                \
		       (CUdeviceptr * pointer, size_t bytes, CUstream stream),                     \
		       (pointer, bytes, stream))
#define ALLOCATES_FROM_POOL(named, name)                                                           \
	ALLOCATES_FROM(named, pool_itself(pool, named, &growth), name,                             \
		       (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),  \
		       (pointer, bytes, pool, stream))

ALLOCATES_FROM_STREAM(stream, cuMemAllocAsync)
ALLOCATES_FROM_STREAM(stream_per_thread(stream), cuMemAllocAsync_ptsz)
ALLOCATES_FROM_POOL(stream, cuMemAllocFromPoolAsync)
ALLOCATES_FROM_POOL(stream_per_thread(stream), cuMemAllocFromPoolAsync_ptsz)

/* The memory stays the pool's; only what cuMemAlloc made is released here, and not in a capture. */
#define FREES_IN(named, name)                                                                      \
	FREES(KIND_MEMORY, capture_has(named) ? 0 : pointer, name,                                 \
	      (CUdeviceptr pointer, CUstream stream), (pointer, stream))

FREES_IN(stream, cuMemFreeAsync)
FREES_IN(stream_per_thread(stream), cuMemFreeAsync_ptsz)

/*
 * Since CUDA 13 there are pools of managed memory, which the card may hold at
 * any time, and the host has pools. What is left is a card's; which, if the
 * place does not say, its first allocation does.
 */
static void note_pool(CUmemoryPool pool, const CUmemLocation *location, CUmemAllocationType type)
{
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
		charge_expect_managed();
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		pools_remember(pool, card_of_device(location->id), false);
	else if (type == CU_MEM_ALLOCATION_TYPE_PINNED && location_is_host(location))
		pools_remember(pool, CARD_FOREIGN, true);
}

#define MAKES_POOL(name, parameters, arguments, ...)                                               \
	HOOK(name, parameters, arguments, (void)0, if (result == CUDA_SUCCESS) __VA_ARGS__)

MAKES_POOL(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties),
	   (pool, properties), note_pool(*pool, &properties->location, properties->allocType))
MAKES_POOL(cuMemGetDefaultMemPool,
	   (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
	   (pool, location, type), note_pool(*pool, location, type))
MAKES_POOL(cuMemGetMemPool,
	   (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
	   (pool, location, type), note_pool(*pool, location, type))
/* Its exporter is charged. */
MAKES_POOL(cuMemPoolImportFromShareableHandle,
	   (CUmemoryPool * pool, void *handle, CUmemAllocationHandleType type,
	    unsigned long long flags),
	   (pool, handle, type, flags), pools_remember(*pool, CARD_FOREIGN, true))

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER(cuMemPoolDestroy, pool);
	return pools_destroy(pool);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	ENTER(cuMemPoolTrimTo, pool, minBytesToKeep);
	return pools_trim(pool, minBytesToKeep);
}
