/*
 * cuMemAllocAsync and friends.
 *
 * The driver takes memory for a pool in chunks and keeps it; what a pool has
 * reserved is what it costs. The growth is not known before the call, so the
 * most it can be is reserved: the request rounded up to the chunk, which is
 * learnt from the growths seen.
 */
#include "pools.h"

#include "account.h"
#include "capture.h"
#include "cards.h"
#include "charge.h"
#include "entry.h"
#include "table.h"

#include <pthread.h>
#include <stdatomic.h>

/* The driver's own, until a smaller growth is seen. */
#define FIRST_CHUNK (32ull * 1024 * 1024)

/* Recursive: running out of room while a pool grows lets all pools be looked at. */
static pthread_mutex_t pooling = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static atomic_bool has_pools;
static uint64_t chunk; /* greatest common divisor of all growths; 0: none seen */

void pools_after_fork(void)
{
	pooling = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	atomic_store(&has_pools, false);
}

static uint64_t pool_number(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	cuuint64_t bytes = 0;

	if (!cuda.cuMemPoolGetAttribute ||
	    cuda.cuMemPoolGetAttribute(pool, attribute, &bytes) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

static void remember(CUmemoryPool pool, int card)
{
	struct table_entry entry = { .key = (uint64_t)(uintptr_t)pool,
				     .kind = KIND_POOL,
				     .card = (int16_t)card };

	if (!table_get(KIND_POOL, entry.key, &entry))
		table_put(&entry);
	atomic_store(&has_pools, true);
}

static void set_charged(CUmemoryPool pool, uint64_t bytes)
{
	table_lock();
	struct table_entry *entry = table_at(KIND_POOL, (uint64_t)(uintptr_t)pool);

	if (entry)
		entry->bytes = bytes;
	table_unlock();
}

/* Brings one pool's charge to what it has reserved now. With the lock. */
static uint64_t follow(CUmemoryPool pool)
{
	struct table_entry entry;
	const uint64_t reserved = pool_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	if (table_get(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry) && entry.bytes != reserved) {
		account_adjust(entry.card, ACCOUNT_USED, entry.bytes, reserved);
		set_charged(pool, reserved);
	}
	return reserved;
}

static void follow_all(int card, bool may_trim)
{
	const CUstreamCaptureMode mode = capture_exempt();
	uint32_t place = 0;

	pthread_mutex_lock(&pooling);
	for (;;) {
		table_lock();
		const struct table_entry *entry = table_next(KIND_POOL, &place);
		const uint64_t key = entry ? entry->key : 0;
		const int owner = entry ? entry->card : CARD_FOREIGN;

		table_unlock();
		if (!key)
			break;
		if (card >= 0 && owner != card)
			continue;
		const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)key;

		if (may_trim && cuda.cuMemPoolTrimTo)
			cuda.cuMemPoolTrimTo(pool, 0);
		follow(pool);
	}
	pthread_mutex_unlock(&pooling);
	capture_restore(mode);
}

void pools_refresh(int card)
{
	if (atomic_load_explicit(&has_pools, memory_order_relaxed))
		follow_all(card, true);
}

void pools_after_sync(void)
{
	if (atomic_load_explicit(&has_pools, memory_order_relaxed))
		follow_all(CARD_FOREIGN, false);
}

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
	const uint64_t rest = bytes % step;

	return rest && bytes <= UINT64_MAX - step ? bytes + step - rest : bytes;
}

static void learn_chunk(uint64_t growth)
{
	uint64_t a = chunk, b = growth;

	while (b) {
		const uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	chunk = a;
}

/* One growth of a pool, between its two halves in the same thread. */
struct growth {
	CUmemoryPool pool;
	int card;
	uint64_t before; /* what the pool had reserved */
	uint64_t reserved; /* of the slice, for it */
};

/* With the lock, which stays taken on success. */
static CUresult growth_begin(struct growth *growth, uint64_t bytes)
{
	pthread_mutex_lock(&pooling);
	growth->before = follow(growth->pool);
	const uint64_t used = pool_number(growth->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	const uint64_t most = round_up(bytes, chunk ? chunk : FIRST_CHUNK);
	const bool may_fit_inside = growth->before >= used && bytes <= growth->before - used;
	CUresult result = account_reserve(growth->card, ACCOUNT_USED, most);

	growth->reserved = most;
	if (result == CUDA_ERROR_OUT_OF_MEMORY && may_fit_inside) {
		/* There is room in the pool itself; whether in one piece, the driver knows. */
		growth->reserved = account_reserve_rest(growth->card, most);
		result = CUDA_SUCCESS;
	}
	/* Making room may have trimmed this pool too. */
	growth->before = follow(growth->pool);
	if (result != CUDA_SUCCESS)
		pthread_mutex_unlock(&pooling);
	return result;
}

static CUresult growth_end(struct growth *growth, CUresult result, CUdeviceptr pointer,
			   CUstream stream)
{
	const uint64_t now = pool_number(growth->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	const uint64_t grown = now > growth->before ? now - growth->before : 0;

	if (grown)
		learn_chunk(grown);
	if (result == CUDA_SUCCESS && grown > growth->reserved && cuda.cuMemFreeAsync) {
		/* More than there is room for: as if it had never been. */
		cuda.cuMemFreeAsync(pointer, stream);
		if (cuda.cuStreamSynchronize)
			cuda.cuStreamSynchronize(stream);
		if (cuda.cuMemPoolTrimTo)
			cuda.cuMemPoolTrimTo(growth->pool, 0);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	account_settle(growth->card, ACCOUNT_USED, growth->reserved, grown);
	set_charged(growth->pool, growth->before + grown);
	follow(growth->pool);
	pthread_mutex_unlock(&pooling);
	return result;
}

/* The pool that cuMemAllocAsync draws from on this stream. */
static CUresult pool_of_stream(CUstream stream, struct growth *growth)
{
	CUdevice device;
	CUresult result = device_of_stream(stream, &device);

	if (result != CUDA_SUCCESS)
		return result;
	growth->card = card_of_device(device);
	if (growth->card < 0 || !cuda.cuDeviceGetMemPool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = cuda.cuDeviceGetMemPool(&growth->pool, device);
	if (result == CUDA_SUCCESS)
		remember(growth->pool, growth->card);
	return result;
}

static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

/*
 * Both variants: `named` is the stream as the plain functions would name it. In
 * a capture nothing is allocated now: the graph is charged when it is launched.
 */
static CUresult allocate(CUdeviceptr *dptr, size_t bytes, CUstream stream, CUstream named,
			 __typeof__(cuMemAllocAsync) *real)
{
	struct growth growth;

	if (capture_has(named))
		return real(dptr, bytes, stream);
	const CUstreamCaptureMode mode = capture_exempt();
	CUresult result = pool_of_stream(named, &growth);

	if (result == CUDA_SUCCESS)
		result = growth_begin(&growth, bytes);
	if (result == CUDA_SUCCESS) {
		capture_restore(mode);
		result = real(dptr, bytes, stream);
		capture_exempt();
		result = growth_end(&growth, result, result == CUDA_SUCCESS ? *dptr : 0, named);
	}
	capture_restore(mode);
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	ENTER(cuMemAllocAsync, dptr, bytesize, hStream);
	return allocate(dptr, bytesize, hStream, hStream, cuda.cuMemAllocAsync);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	ENTER(cuMemAllocAsync_ptsz, dptr, bytesize, hStream);
	return allocate(dptr, bytesize, hStream, per_thread(hStream), cuda.cuMemAllocAsync_ptsz);
}

/* An unknown pool is another process's, imported: its exporter is charged. */
static CUresult allocate_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream,
			      CUstream named, __typeof__(cuMemAllocFromPoolAsync) *real)
{
	struct growth growth = { .pool = pool };
	struct table_entry entry;
	CUmemoryPool current;
	CUdevice device;

	if (capture_has(named))
		return real(dptr, bytes, pool, stream);
	const CUstreamCaptureMode mode = capture_exempt();

	/* A default pool may come here before anything was drawn from it by stream. */
	if (!table_get(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry) &&
	    device_of_stream(named, &device) == CUDA_SUCCESS && cuda.cuDeviceGetDefaultMemPool &&
	    cuda.cuDeviceGetDefaultMemPool(&current, device) == CUDA_SUCCESS && current == pool)
		remember(pool, card_of_device(device));
	if (!table_get(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry)) {
		capture_restore(mode);
		return real(dptr, bytes, pool, stream);
	}
	growth.card = entry.card;
	CUresult result = growth_begin(&growth, bytes);

	if (result == CUDA_SUCCESS) {
		capture_restore(mode);
		result = real(dptr, bytes, pool, stream);
		capture_exempt();
		result = growth_end(&growth, result, result == CUDA_SUCCESS ? *dptr : 0, named);
	}
	capture_restore(mode);
	return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				 CUstream hStream)
{
	ENTER(cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream);
	return allocate_from(dptr, bytesize, pool, hStream, hStream, cuda.cuMemAllocFromPoolAsync);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
				      CUstream hStream)
{
	ENTER(cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, pool, hStream);
	return allocate_from(dptr, bytesize, pool, hStream, per_thread(hStream),
			     cuda.cuMemAllocFromPoolAsync_ptsz);
}

/* The memory stays the pool's; only what cuMemAlloc made is released here. */
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct charge_taken taken;

	ENTER(cuMemFreeAsync, dptr, hStream);
	charge_take(&taken, KIND_MEMORY, dptr);
	const CUresult result = cuda.cuMemFreeAsync(dptr, hStream);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	struct charge_taken taken;

	ENTER(cuMemFreeAsync_ptsz, dptr, hStream);
	charge_take(&taken, KIND_MEMORY, dptr);
	const CUresult result = cuda.cuMemFreeAsync_ptsz(dptr, hStream);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	ENTER(cuMemPoolCreate, pool, poolProps);
	const CUresult result = cuda.cuMemPoolCreate(pool, poolProps);

	if (result == CUDA_SUCCESS && poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		remember(*pool, card_of_device(poolProps->location.id));
	return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct table_entry entry;

	ENTER(cuMemPoolDestroy, pool);
	pthread_mutex_lock(&pooling);
	const CUresult result = cuda.cuMemPoolDestroy(pool);

	if (result == CUDA_SUCCESS && table_take(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry))
		account_adjust(entry.card, ACCOUNT_USED, entry.bytes, 0);
	pthread_mutex_unlock(&pooling);
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	ENTER(cuMemPoolTrimTo, pool, minBytesToKeep);
	pthread_mutex_lock(&pooling);
	const CUresult result = cuda.cuMemPoolTrimTo(pool, minBytesToKeep);

	follow(pool);
	pthread_mutex_unlock(&pooling);
	return result;
}
