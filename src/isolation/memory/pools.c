/*
 * What the pools of this process cost.
 *
 * The driver takes memory for a pool in chunks and keeps it; what a pool has reserved is what it
 * costs. By how much it will grow is not known before the call, so the most is reserved that the
 * request can need: itself in whole chunks, for the unused part of a pool may lie in pieces. What
 * does not fit so never reaches the driver. A request for which the pool has room reserves
 * nothing, unless the pool has grown for one as small before.
 */
#include "memory/pools.h"

#include "books/memory_limit.h"
#include "books/memory_charge.h"
#include "books/pages.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "driver/stream.h"
#include "slice/killpoint.h"
#include "overhead/overhead.h"

#include <pthread.h>
#include <stdatomic.h>

/* Today's drivers' own. */
#define USUAL_CHUNK (32ull * 1024 * 1024)

/* Recursive: running out of room while a pool grows lets all pools be looked at. */
static pthread_mutex_t pooling = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* Pools beyond these give no memory. */
enum { POOLS = 1024 };

/* With the lock. */
static struct pool {
	CUmemoryPool pool; /* NULL: free */
	int card;
	bool is_elsewhere; /* another process's, or of the host: not charged here */
	bool is_ended;     /* destroyed by the program; the driver has it until nothing is out */
	uint64_t charged;
	uint64_t tight; /* the smallest request for which it grew although it had room; 0: none */
} pools[POOLS];
static atomic_uint pool_count; /* the first so many were ever used */

/* What growths have shown of the driver; with the lock. */
static uint64_t chunk = USUAL_CHUNK;
static bool is_exact_beyond_chunk; /* what is larger comes in pages, not in whole chunks */

void pools_after_fork(void)
{
	pooling = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	atomic_store(&pool_count, 0);
}

static uint64_t pool_number(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	cuuint64_t bytes = 0;

	if (!cuda.cuMemPoolGetAttribute ||
	    cuda.cuMemPoolGetAttribute(pool, attribute, &bytes) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

/* With the lock; NULL where there is none, and with NULL the first that is free. */
static struct pool *find(CUmemoryPool pool)
{
	const unsigned count = atomic_load(&pool_count);

	for (unsigned i = 0; i < count; i++)
		if (pools[i].pool == pool)
			return &pools[i];
	if (pool || count == POOLS)
		return NULL;
	pools[count] = (struct pool){0};
	atomic_store(&pool_count, count + 1);
	return &pools[count];
}

/* A pool that is known already stays as it is. */
void pools_remember(CUmemoryPool pool, int card, bool is_elsewhere)
{
	pthread_mutex_lock(&pooling);
	struct pool *place = find(pool) ? NULL : find(NULL);

	if (place)
		*place = (struct pool){.pool = pool, .card = card, .is_elsewhere = is_elsewhere};
	pthread_mutex_unlock(&pooling);
}

bool pools_know(CUmemoryPool pool, int *card, bool *is_elsewhere)
{
	pthread_mutex_lock(&pooling);
	const struct pool *known = find(pool);

	if (known) {
		*card = known->card;
		*is_elsewhere = known->is_elsewhere;
	}
	pthread_mutex_unlock(&pooling);
	return known;
}

static uint64_t follow(struct pool *pool)
{
	const uint64_t reserved = pool_number(pool->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	if (!pool->is_elsewhere && pool->charged != reserved) {
		account_adjust(pool->card, ACCOUNT_USED, pool->charged, reserved);
		pool->charged = reserved;
	}
	return reserved;
}

/* The call ends after the books have followed, or a measurement in between would be wrong. */
CUresult pools_trim(CUmemoryPool handle, size_t least)
{
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	pthread_mutex_lock(&pooling);
	calls_begin();
	if (cuda.cuMemPoolTrimTo)
		result = cuda.cuMemPoolTrimTo(handle, least);
	PAUSEPOINT(pool_trimmed);
	struct pool *pool = handle ? find(handle) : NULL; /* an application may name none */

	if (pool)
		follow(pool);
	calls_end();
	pthread_mutex_unlock(&pooling);
	return result;
}

/* The driver destroys it. With the lock. */
static CUresult end(CUmemoryPool handle, struct pool *pool)
{
	calls_begin();
	const CUresult result = cuda.cuMemPoolDestroy(handle);

	if (result == CUDA_SUCCESS && pool) {
		account_adjust(pool->card, ACCOUNT_USED, pool->charged, 0);
		*pool = (struct pool){0};
	}
	calls_end();
	return result;
}

/* Devices that draw from it draw from their default one; false where it is a default one itself. */
static bool stop_drawing(CUmemoryPool pool)
{
	CUmemoryPool standard, current;
	int count = 0;

	if (!cuda.cuDeviceGetCount || !cuda.cuDeviceGetDefaultMemPool || !cuda.cuDeviceGetMemPool ||
	    !cuda.cuDeviceSetMemPool || cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return false;
	for (CUdevice device = 0; device < count; device++) {
		if (cuda.cuDeviceGetDefaultMemPool(&standard, device) != CUDA_SUCCESS)
			continue;
		if (standard == pool)
			return false;
		if (cuda.cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == pool)
			cuda.cuDeviceSetMemPool(device, standard);
	}
	return true;
}

/*
 * The driver keeps a destroyed pool's chunks until all that is out of it is freed, and nobody can
 * ask it about such a pool. So it is destroyed only when it is empty.
 */
CUresult pools_destroy(CUmemoryPool handle)
{
	const CUstreamCaptureMode mode = capture_exempt();
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&pooling);
	struct pool *pool = handle ? find(handle) : NULL;
	const bool is_charged = pool && !pool->is_elsewhere;

	if (is_charged)
		(void)pools_trim(handle, 0);
	if (pool && pool->is_ended)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!is_charged || !pool->charged || !stop_drawing(handle))
		result = end(handle, pool);
	else
		pool->is_ended = true;
	pthread_mutex_unlock(&pooling);
	capture_restore(mode);
	return result;
}

/* Only a look, as between two figures of one moment; with the end of empty pools; or a trim. */
enum way { FOLLOW, END_EMPTY, TRIM };

static void follow_all(int card, enum way way)
{
	const CUstreamCaptureMode mode = capture_exempt();

	pthread_mutex_lock(&pooling);
	for (unsigned i = 0; i < atomic_load(&pool_count); i++) {
		struct pool *pool = &pools[i];

		if (!pool->pool || pool->is_elsewhere || (card >= 0 && pool->card != card))
			continue;
		if (way == TRIM || (way == END_EMPTY && pool->is_ended))
			(void)pools_trim(pool->pool, 0);
		else
			follow(pool);
		if (way != FOLLOW && pool->is_ended && !pool->charged)
			(void)end(pool->pool, pool);
	}
	pthread_mutex_unlock(&pooling);
	capture_restore(mode);
}

static bool are_any(void)
{
	return atomic_load_explicit(&pool_count, memory_order_relaxed) != 0;
}

bool pools_follow_card(int card)
{
	if (!are_any())
		return true;
	/* The thread that holds it may be growing one. */
	if (pthread_mutex_trylock(&pooling) != 0)
		return false;
	follow_all(card, FOLLOW);
	pthread_mutex_unlock(&pooling);
	return true;
}

void pools_refresh(int card)
{
	if (are_any())
		follow_all(card, TRIM);
}

/* The thread that has the lock may be growing one: until the next wait too much is charged. */
void pools_after_sync(void)
{
	if (!are_any() || pthread_mutex_trylock(&pooling) != 0)
		return;
	follow_all(CARD_FOREIGN, END_EMPTY);
	pthread_mutex_unlock(&pooling);
}

/* The most that a pool can grow by for so many bytes. With the lock. */
static uint64_t most_growth(uint64_t bytes)
{
	return round_up(bytes, is_exact_beyond_chunk && bytes > chunk ? PAGE_BYTES : chunk);
}

/* What the pool has reserved; true when it may have to grow. With the lock. */
static bool may_grow(struct pool_growth *growth, struct pool *pool)
{
	growth->before = follow(pool);
	const uint64_t used = pool_number(growth->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	const uint64_t unused = growth->before > used ? growth->before - used : 0;

	return growth->asked > unused || (used && pool->tight && growth->asked >= pool->tight);
}

static CUresult reserve_growth(struct pool_growth *growth, struct pool *pool)
{
	const CUresult result =
		charge_card(&growth->charge, growth->charge.card, most_growth(growth->asked));

	/* Making room may have trimmed this pool too. */
	(void)may_grow(growth, pool);
	return result;
}

CUresult pools_begin_growth(struct pool_growth *growth, uint64_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&pooling);
	struct pool *pool = find(growth->pool);

	growth->asked = bytes;
	if (!pool || pool->is_ended) {
		result = pool ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	} else if (may_grow(growth, pool) || growth->charge.card < 0) {
		result = reserve_growth(growth, pool);
	} else {
		PAUSEPOINT(pool_has_room);
		overhead_refresh(growth->charge.card, bytes);
		/* Another thread's wait may have shrunk it, and the look have followed. */
		if (pool->charged != growth->before && may_grow(growth, pool))
			result = reserve_growth(growth, pool);
		PAUSEPOINT(pool_has_room);
	}
	growth->is_open = result == CUDA_SUCCESS;
	if (!growth->is_open)
		pthread_mutex_unlock(&pooling);
	return result;
}

/* With the lock. */
static void learn(const struct pool_growth *growth, struct pool *pool, uint64_t grown)
{
	const uint64_t beyond = grown > growth->asked ? grown - growth->asked : 0;

	while (chunk < beyond)
		chunk *= 2;
	if (grown > chunk && grown % chunk)
		is_exact_beyond_chunk = true;
	/* It had room, in pieces that were too small. */
	if (grown && !growth->charge.bytes && (!pool->tight || growth->asked < pool->tight))
		pool->tight = growth->asked;
}

/*
 * More than there is room for: as if it had never been. The stream may wait for what another
 * thread does with pools: the lock is given up meanwhile.
 */
static void undo(const struct pool_growth *growth, CUdeviceptr pointer, CUstream stream)
{
	cuda.cuMemFreeAsync(pointer, stream);
	pthread_mutex_unlock(&pooling);
	if (cuda.cuStreamSynchronize)
		cuda.cuStreamSynchronize(stream);
	pthread_mutex_lock(&pooling);
	(void)pools_trim(growth->pool, 0);
}

CUresult pools_end_growth(struct pool_growth *growth, CUresult result, CUdeviceptr pointer,
			  CUstream stream)
{
	struct pool *pool = find(growth->pool);
	const uint64_t now = pool_number(growth->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	uint64_t grown = now > growth->before ? now - growth->before : 0;

	learn(growth, pool, grown);
	/* What the driver takes beside a pool for it, nobody says. */
	if (grown && growth->charge.card >= 0)
		overhead_stale_urgently(1u << growth->charge.card);
	/* It may have grown by more than any growth so far let expect. */
	if (result == CUDA_SUCCESS && grown > growth->charge.bytes &&
	    charge_more(&growth->charge, grown - growth->charge.bytes) != CUDA_SUCCESS &&
	    cuda.cuMemFreeAsync) {
		undo(growth, pointer, stream);
		pool = find(growth->pool); /* another thread may have ended it */
		if (pool)
			(void)may_grow(growth, pool);
		result = CUDA_ERROR_OUT_OF_MEMORY;
		grown = 0;
	}
	/* A look at all pools for want of room may have charged this one already. */
	const uint64_t due = growth->before + grown;
	const uint64_t more = pool && due > pool->charged ? due - pool->charged : 0;

	account_settle(growth->charge.card, ACCOUNT_USED, growth->charge.bytes, more);
	if (pool) {
		pool->charged += more;
		follow(pool);
	}
	pthread_mutex_unlock(&pooling);
	return result;
}
