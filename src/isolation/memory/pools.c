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
#include "books/holdings.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "driver/stream.h"
#include "slice/killpoint.h"
#include "overhead/overhead.h"

#include <pthread.h>
#include <stdatomic.h>

/* Today's drivers' own. */
#define USUAL_CHUNK (32ull * 1024 * 1024)
#define PAGE_BYTES (2ull * 1024 * 1024)

/* Recursive: running out of room while a pool grows lets all pools be looked at. */
static pthread_mutex_t pooling = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
/* Each names the next in `other`. Changed with the lock. */
static _Atomic uint64_t first_pool;
/* What growths have shown of the driver; with the lock. */
static uint64_t chunk = USUAL_CHUNK;
static bool is_exact_beyond_chunk; /* what is larger comes in pages, not in whole chunks */

void pools_after_fork(void)
{
	pooling = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	atomic_store(&first_pool, 0);
}

static uint64_t pool_number(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	cuuint64_t bytes = 0;

	if (!cuda.cuMemPoolGetAttribute ||
	    cuda.cuMemPoolGetAttribute(pool, attribute, &bytes) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

void pools_remember(CUmemoryPool pool, int card)
{
	struct holding entry = {
		.key = (uint64_t)(uintptr_t)pool, .kind = KIND_POOL, .card = (int16_t)card};

	if (holdings_get(KIND_POOL, entry.key, &entry))
		return;
	pthread_mutex_lock(&pooling);
	entry.other = atomic_load(&first_pool);
	if (!holdings_get(KIND_POOL, entry.key, &entry) && holdings_put(&entry))
		atomic_store(&first_pool, entry.key);
	pthread_mutex_unlock(&pooling);
}

/* Takes it out of the list. With the lock. */
static void unlink_pool(const struct holding *gone)
{
	uint64_t key = atomic_load(&first_pool);

	if (key == gone->key) {
		atomic_store(&first_pool, gone->other);
		return;
	}
	holdings_lock();
	struct holding *entry = holdings_at(KIND_POOL, key);

	while (entry && entry->other != gone->key)
		entry = holdings_at(KIND_POOL, entry->other);
	if (entry)
		entry->other = gone->other;
	holdings_unlock();
}

/*
 * The driver keeps what is out of it until it is freed, but then nobody can ask the pool
 * any more: it stays charged until the context ends.
 */
void pools_forget(CUmemoryPool pool, uint64_t used)
{
	static _Atomic uint64_t ended;
	struct holding entry;

	holdings_take(KIND_POOL_ELSEWHERE, (uint64_t)(uintptr_t)pool, &entry);
	if (!holdings_take(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry))
		return;
	unlink_pool(&entry);
	const struct holding rest = {.key = atomic_fetch_add(&ended, 1) + 1,
				     .kind = KIND_POOL_ENDED,
				     .card = entry.card,
				     .context = (uint64_t)(uintptr_t)context_current(),
				     .bytes = used < entry.bytes ? used : entry.bytes};

	account_adjust(entry.card, ACCOUNT_USED, entry.bytes, rest.bytes);
	if (rest.bytes)
		holdings_put(&rest);
}

void pools_remember_elsewhere(CUmemoryPool pool)
{
	const struct holding entry = {.key = (uint64_t)(uintptr_t)pool,
				      .kind = KIND_POOL_ELSEWHERE,
				      .card = CARD_FOREIGN};

	struct holding own;

	/* One of our own that was handed to us again stays our own. */
	if (!pools_is_elsewhere(pool) && !holdings_get(KIND_POOL, entry.key, &own))
		holdings_put(&entry);
}

bool pools_is_elsewhere(CUmemoryPool pool)
{
	struct holding entry;

	return holdings_get(KIND_POOL_ELSEWHERE, (uint64_t)(uintptr_t)pool, &entry);
}

static void set_charged(CUmemoryPool pool, uint64_t bytes)
{
	holdings_lock();
	struct holding *entry = holdings_at(KIND_POOL, (uint64_t)(uintptr_t)pool);

	if (entry)
		entry->bytes = bytes;
	holdings_unlock();
}

static struct holding entry_of(CUmemoryPool pool)
{
	struct holding entry = {0};

	holdings_get(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry);
	return entry;
}

/* Brings one pool's charge to what it has reserved now. With the lock. */
uint64_t pools_follow(CUmemoryPool pool)
{
	struct holding entry;
	const uint64_t reserved = pool_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	if (holdings_get(KIND_POOL, (uint64_t)(uintptr_t)pool, &entry) && entry.bytes != reserved) {
		account_adjust(entry.card, ACCOUNT_USED, entry.bytes, reserved);
		set_charged(pool, reserved);
	}
	return reserved;
}

/* The call is not over before the books know: who measures in between takes less for overhead. */
CUresult pools_trim(CUmemoryPool pool, size_t least)
{
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;

	calls_begin();
	if (cuda.cuMemPoolTrimTo)
		result = cuda.cuMemPoolTrimTo(pool, least);
	PAUSEPOINT(pool_trimmed);
	pools_follow(pool);
	calls_end();
	return result;
}

static void follow_all(int card, bool may_trim)
{
	const CUstreamCaptureMode mode = capture_exempt();
	struct holding entry;

	pthread_mutex_lock(&pooling);
	for (uint64_t key = atomic_load(&first_pool); key && holdings_get(KIND_POOL, key, &entry);
	     key = entry.other) {
		const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)key;

		if (card >= 0 && entry.card != card)
			continue;
		if (may_trim)
			(void)pools_trim(pool, 0);
		else
			pools_follow(pool);
	}
	pthread_mutex_unlock(&pooling);
	capture_restore(mode);
}

bool pools_follow_card(int card)
{
	if (!atomic_load_explicit(&first_pool, memory_order_relaxed))
		return true;
	/* Who has it may be growing one. */
	if (pthread_mutex_trylock(&pooling) != 0)
		return false;
	follow_all(card, false);
	pthread_mutex_unlock(&pooling);
	return true;
}

void pools_refresh(int card)
{
	if (atomic_load_explicit(&first_pool, memory_order_relaxed))
		follow_all(card, true);
}

void pools_after_sync(void)
{
	if (atomic_load_explicit(&first_pool, memory_order_relaxed))
		follow_all(CARD_FOREIGN, false);
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	const uint64_t rest = bytes % to;

	return rest && bytes <= UINT64_MAX - to ? bytes + to - rest : bytes;
}

uint64_t pools_used(CUmemoryPool pool)
{
	return pool_number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

void pools_lock(void)
{
	pthread_mutex_lock(&pooling);
}

void pools_unlock(void)
{
	pthread_mutex_unlock(&pooling);
}

/* The most that a pool can grow by for so many bytes. With the lock. */
static uint64_t most_growth(uint64_t bytes)
{
	return round_up(bytes, is_exact_beyond_chunk && bytes > chunk ? PAGE_BYTES : chunk);
}

/* What the pool has reserved; true when it may have to grow. With the lock. */
static bool may_grow(struct pool_growth *growth)
{
	growth->before = pools_follow(growth->pool);
	const uint64_t used = pools_used(growth->pool);
	const uint64_t unused = growth->before > used ? growth->before - used : 0;
	const uint64_t tight = entry_of(growth->pool).other_serial;

	return growth->asked > unused || (used && tight && growth->asked >= tight);
}

CUresult pools_begin_growth(struct pool_growth *growth, uint64_t bytes)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&pooling);
	growth->asked = bytes;
	if (may_grow(growth) || growth->card < 0) {
		growth->reserved = most_growth(bytes);
		result = account_reserve(growth->card, ACCOUNT_USED, growth->reserved);
		/* Making room may have trimmed this pool too. */
		(void)may_grow(growth);
	} else {
		overhead_refresh(growth->card, bytes);
	}
	if (result != CUDA_SUCCESS)
		pthread_mutex_unlock(&pooling);
	return result;
}

/* With the lock. */
static void learn(const struct pool_growth *growth, uint64_t grown)
{
	const uint64_t beyond = grown > growth->asked ? grown - growth->asked : 0;

	while (chunk < beyond)
		chunk *= 2;
	if (grown > chunk && grown % chunk)
		is_exact_beyond_chunk = true;
	if (!grown || growth->reserved)
		return;
	/* It had room, in pieces that were too small. */
	holdings_lock();
	struct holding *entry = holdings_at(KIND_POOL, (uint64_t)(uintptr_t)growth->pool);

	if (entry && (!entry->other_serial || growth->asked < entry->other_serial))
		entry->other_serial = growth->asked;
	holdings_unlock();
}

/* The pool grew by more than any growth so far let expect. */
static bool has_room_for_more(struct pool_growth *growth, uint64_t grown)
{
	const uint64_t more = grown - growth->reserved;

	if (account_reserve(growth->card, ACCOUNT_USED, more) != CUDA_SUCCESS)
		return false;
	/* Two reservations, one call. */
	if (growth->reserved)
		account_settle(growth->card, ACCOUNT_USED, more, more);
	growth->reserved = grown;
	return true;
}

/* More than there is room for: as if it had never been. */
static void undo(const struct pool_growth *growth, CUdeviceptr pointer, CUstream stream)
{
	cuda.cuMemFreeAsync(pointer, stream);
	if (cuda.cuStreamSynchronize)
		cuda.cuStreamSynchronize(stream);
	(void)pools_trim(growth->pool, 0);
}

CUresult pools_end_growth(struct pool_growth *growth, CUresult result, CUdeviceptr pointer,
			  CUstream stream)
{
	const uint64_t now = pool_number(growth->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	uint64_t grown = now > growth->before ? now - growth->before : 0;

	learn(growth, grown);
	if (result == CUDA_SUCCESS && grown > growth->reserved &&
	    !has_room_for_more(growth, grown) && cuda.cuMemFreeAsync) {
		undo(growth, pointer, stream);
		(void)may_grow(growth);
		result = CUDA_ERROR_OUT_OF_MEMORY;
		grown = 0;
	}
	/* A look at all pools for want of room may have charged this one already. */
	const struct holding entry = entry_of(growth->pool);
	const uint64_t due = growth->before + grown, charged = entry.bytes;

	account_settle(growth->card, ACCOUNT_USED, growth->reserved,
		       due > charged ? due - charged : 0);
	if (due > charged)
		set_charged(growth->pool, due);
	pools_follow(growth->pool);
	pthread_mutex_unlock(&pooling);
	return result;
}
