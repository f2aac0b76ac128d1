/*
 * What the pools of this process cost.
 *
 * The driver takes memory for a pool in chunks and keeps it; what a pool has
 * reserved is what it costs. The growth is not known before the call, so the request is
 * reserved, rounded up to today's chunks. That is a guess, so it never refuses: where it does not
 * fit and the request itself does, all that is left is reserved, the driver is asked, and what
 * it took beyond that is given back.
 */
#include "memory/pools.h"

#include "books/account.h"
#include "books/calls.h"
#include "books/charge.h"
#include "books/holdings.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "driver/stream.h"
#include "slice/killpoint.h"
#include "unasked/overhead.h"

#include <pthread.h>
#include <stdatomic.h>

/* Today's drivers' own. */
#define USUAL_CHUNK (32ull * 1024 * 1024)

/* Recursive: running out of room while a pool grows lets all pools be looked at. */
static pthread_mutex_t pooling = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static atomic_bool has_pools;
/* The last growth that was undone: as much asked again of the pool as it was left is not tried. */
static struct {
	CUmemoryPool pool;
	uint64_t asked, grown;
	uint64_t reserved, used; /* of the pool, afterwards */
} undone;

void pools_after_fork(void)
{
	pooling = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	atomic_store(&has_pools, false);
	undone.pool = NULL;
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

	if (!holdings_get(KIND_POOL, entry.key, &entry))
		holdings_put(&entry);
	atomic_store(&has_pools, true);
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

	/* One of ours that was handed to us again stays ours. */
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
	uint32_t place = 0;

	pthread_mutex_lock(&pooling);
	for (;;) {
		holdings_lock();
		const struct holding *entry = holdings_next(KIND_POOL, &place);
		const uint64_t key = entry ? entry->key : 0;
		const int owner = entry ? entry->card : CARD_FOREIGN;

		holdings_unlock();
		if (!key)
			break;
		if (card >= 0 && owner != card)
			continue;
		const CUmemoryPool pool = (CUmemoryPool)(uintptr_t)key;

		if (may_trim)
			(void)pools_trim(pool, 0);
		else
			pools_follow(pool);
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

/* The unused part of a pool may lie in pieces: by how much it grows, only trying tells. */
static bool was_in_vain(const struct pool_growth *growth)
{
	return undone.pool == growth->pool && undone.reserved == growth->before &&
	       undone.used == pools_used(growth->pool) && growth->asked >= undone.asked &&
	       growth->reserved < undone.grown;
}

/* All that is left, if what the pool lacks fits and was not tried in vain. With the lock. */
static CUresult reserve_rest(struct pool_growth *growth, uint64_t most)
{
	growth->reserved = account_reserve_rest(growth->card, most);
	if (growth->reserved >= growth->missing && !was_in_vain(growth))
		return CUDA_SUCCESS;
	account_settle(growth->card, ACCOUNT_USED, growth->reserved, 0);
	account_count_refusal(growth->card);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What the pool has reserved, and what it lacks for so many bytes. With the lock. */
static void look_inside(struct pool_growth *growth)
{
	growth->before = pools_follow(growth->pool);
	const uint64_t used = pools_used(growth->pool);
	const uint64_t unused = growth->before > used ? growth->before - used : 0;

	growth->missing = growth->asked > unused ? growth->asked - unused : 0;
}

CUresult pools_begin_growth(struct pool_growth *growth, uint64_t bytes)
{
	pthread_mutex_lock(&pooling);
	growth->asked = bytes;
	look_inside(growth);
	const uint64_t most = round_up(bytes, USUAL_CHUNK);
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (growth->missing || growth->card < 0) {
		growth->reserved = most;
		result = account_try_reserve(growth->card, ACCOUNT_USED, most);
		/* Making room may have trimmed this pool too. */
		look_inside(growth);
	} else {
		/* There is room in the pool; whether in one piece, the driver knows. */
		overhead_refresh(growth->card, bytes);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = reserve_rest(growth, most);
	if (result != CUDA_SUCCESS)
		pthread_mutex_unlock(&pooling);
	return result;
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
static void undo(const struct pool_growth *growth, uint64_t grown, CUdeviceptr pointer,
		 CUstream stream)
{
	cuda.cuMemFreeAsync(pointer, stream);
	if (cuda.cuStreamSynchronize)
		cuda.cuStreamSynchronize(stream);
	(void)pools_trim(growth->pool, 0);
	undone.pool = growth->pool;
	undone.asked = growth->asked;
	undone.grown = grown;
	undone.used = pools_used(growth->pool);
	undone.reserved = pool_number(growth->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

CUresult pools_end_growth(struct pool_growth *growth, CUresult result, CUdeviceptr pointer,
			  CUstream stream)
{
	const uint64_t now = pool_number(growth->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	uint64_t grown = now > growth->before ? now - growth->before : 0;

	if (result == CUDA_SUCCESS && grown > growth->reserved &&
	    !has_room_for_more(growth, grown) && cuda.cuMemFreeAsync) {
		undo(growth, grown, pointer, stream);
		look_inside(growth);
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
