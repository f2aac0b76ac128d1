/* cuMemAllocAsync and friends: every call that draws from a pool, makes one or ends it. */
#include "books/account.h"
#include "books/calls.h"
#include "books/charge.h"
#include "books/entry.h"
#include "books/holdings.h"
#include "driver/capture.h"
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
	result = card_find(device, &growth->card);
	if (result != CUDA_SUCCESS)
		return result;
	if (growth->card < 0 || !cuda.cuDeviceGetMemPool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuda.cuDeviceGetMemPool(&growth->pool, device);
	if (result == CUDA_SUCCESS)
		pools_remember(growth->pool, growth->card);
	return result;
}

/*
 * Both variants: `named` is the stream as the plain functions would name it. In
 * a capture nothing is allocated now: the graph is charged when it is launched.
 */
static CUresult allocate(CUdeviceptr *dptr, size_t bytes, CUstream stream, CUstream named,
			 __typeof__(cuMemAllocAsync) *real)
{
	struct pool_growth growth;

	if (capture_has(named))
		return real(dptr, bytes, stream);
	const CUstreamCaptureMode mode = capture_exempt();
	CUresult result = pool_of_stream(named, &growth);

	if (result == CUDA_SUCCESS)
		result = pools_begin_growth(&growth, bytes);
	if (result == CUDA_SUCCESS) {
		capture_restore(mode);
		result = real(dptr, bytes, stream);
		capture_exempt();
		result = pools_end_growth(&growth, result, result == CUDA_SUCCESS ? *dptr : 0,
					  named);
	}
	capture_restore(mode);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	ENTER_TO_GIVE(dptr, cuMemAllocAsync, dptr, bytesize, hStream);
	return allocate(dptr, bytesize, hStream, hStream, cuda.cuMemAllocAsync);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	ENTER_TO_GIVE(dptr, cuMemAllocAsync_ptsz, dptr, bytesize, hStream);
	return allocate(dptr, bytesize, hStream, stream_per_thread(hStream),
			cuda.cuMemAllocAsync_ptsz);
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

/* Of a pool that was not made before our eyes; in doubt the stream's: nothing goes uncounted. */
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

static CUresult allocate_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream,
			      CUstream named, __typeof__(cuMemAllocFromPoolAsync) *real)
{
	struct pool_growth growth = {.pool = pool};
	struct holding entry;

	/* A NULL is the driver's to refuse. */
	if (!pool || capture_has(named) || pools_is_elsewhere(pool))
		return real(dptr, bytes, pool, stream);
	const CUstreamCaptureMode mode = capture_exempt();

	if (holdings_get(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry)) {
		growth.card = entry.card;
	} else {
		growth.card = card_of_pool(pool, named);
		pools_remember(pool, growth.card);
	}
	CUresult result = pools_begin_growth(&growth, bytes);

	if (result == CUDA_SUCCESS) {
		capture_restore(mode);
		result = real(dptr, bytes, pool, stream);
		capture_exempt();
		result = pools_end_growth(&growth, result, result == CUDA_SUCCESS ? *dptr : 0,
					  named);
	}
	capture_restore(mode);
	return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				 CUstream hStream)
{
	ENTER_TO_GIVE(dptr, cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream);
	return allocate_from(dptr, bytesize, pool, hStream, hStream, cuda.cuMemAllocFromPoolAsync);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				      CUstream hStream)
{
	ENTER_TO_GIVE(dptr, cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, pool, hStream);
	return allocate_from(dptr, bytesize, pool, hStream, stream_per_thread(hStream),
			     cuda.cuMemAllocFromPoolAsync_ptsz);
}

/*
 * The memory stays the pool's; only what cuMemAlloc made is released here. In a
 * capture nothing is freed now.
 */
static CUresult free_in(CUdeviceptr pointer, CUstream stream, CUstream named,
			__typeof__(cuMemFreeAsync) *real)
{
	struct charge_taken taken;

	if (capture_has(named))
		return real(pointer, stream);
	charge_take(&taken, KIND_MEMORY, pointer);
	const CUresult result = real(pointer, stream);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	ENTER(cuMemFreeAsync, dptr, hStream);
	return free_in(dptr, hStream, hStream, cuda.cuMemFreeAsync);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	ENTER(cuMemFreeAsync_ptsz, dptr, hStream);
	return free_in(dptr, hStream, stream_per_thread(hStream), cuda.cuMemFreeAsync_ptsz);
}

/*
 * Since CUDA 13 there are pools of managed memory, which the card may hold at
 * any time, and the host has pools. What is left is a card's; which, if the
 * place does not say, its first allocation does.
 */
static void note_pool(CUmemoryPool pool, const CUmemLocation *location, CUmemAllocationType type)
{
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
		charge_expect_managed();
	else if (location_is_host(location))
		pools_remember_elsewhere(pool);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	ENTER(cuMemPoolCreate, pool, poolProps);
	const CUresult result = cuda.cuMemPoolCreate(pool, poolProps);

	if (result != CUDA_SUCCESS)
		return result;
	note_pool(*pool, &poolProps->location, poolProps->allocType);
	if (poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		pools_remember(*pool, card_of_device(poolProps->location.id));
	return CUDA_SUCCESS;
}

/* Its exporter is charged. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
					    CUmemAllocationHandleType handleType,
					    unsigned long long flags)
{
	ENTER(cuMemPoolImportFromShareableHandle, pool_out, handle, handleType, flags);
	const CUresult result =
		cuda.cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);

	if (result == CUDA_SUCCESS)
		pools_remember_elsewhere(*pool_out);
	return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
				CUmemAllocationType type)
{
	ENTER(cuMemGetDefaultMemPool, pool_out, location, type);
	const CUresult result = cuda.cuMemGetDefaultMemPool(pool_out, location, type);

	if (result == CUDA_SUCCESS)
		note_pool(*pool_out, location, type);
	return result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	ENTER(cuMemGetMemPool, pool, location, type);
	const CUresult result = cuda.cuMemGetMemPool(pool, location, type);

	if (result == CUDA_SUCCESS)
		note_pool(*pool, location, type);
	return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER(cuMemPoolDestroy, pool);
	pools_lock();
	pools_follow(pool);
	const uint64_t used = pools_used(pool);
	const CUresult result = CALLING(cuda.cuMemPoolDestroy(pool));

	if (result == CUDA_SUCCESS)
		pools_forget(pool, used);
	pools_unlock();
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	ENTER(cuMemPoolTrimTo, pool, minBytesToKeep);
	pools_lock();
	const CUresult result = CALLING(cuda.cuMemPoolTrimTo(pool, minBytesToKeep));

	pools_follow(pool);
	pools_unlock();
	return result;
}
