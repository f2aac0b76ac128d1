/*
 * What is out of a pool when it is destroyed.
 *
 * The driver keeps such a pool's memory until its last allocation was freed and
 * the streams have come to the frees, but nobody can ask the pool any more. So
 * each allocation from a pool that a program made has an entry with the pool's
 * number; a destroyed pool has one that counts them, and each of its frees that
 * is on its way has an event in its stream.
 */
#include "memory/pieces.h"

#include "books/account.h"
#include "books/holdings.h"
#include "driver/capture.h"
#include "driver/cards.h"

#include <stdatomic.h>

static _Atomic uint64_t made;  /* pools */
static _Atomic uint32_t ended; /* of them with something out */

void pieces_after_fork(void)
{
	atomic_store(&made, 0);
	atomic_store(&ended, 0);
}

uint64_t pieces_new_pool(void)
{
	return atomic_fetch_add(&made, 1) + 1;
}

void pieces_add(uint64_t pool, CUdeviceptr pointer)
{
	const struct holding entry = {
		.key = pointer, .kind = KIND_PIECE, .card = CARD_FOREIGN, .other = pool};

	if (pool)
		holdings_put(&entry);
}

void piece_take(struct piece *piece, CUdeviceptr pointer)
{
	*piece = (struct piece){.pointer = pointer};
	if (!atomic_load_explicit(&made, memory_order_relaxed) || !pointer)
		return;
	holdings_lock();
	struct holding *entry = holdings_at(KIND_PIECE, pointer);

	if (entry) {
		piece->pool = entry->other;
		holdings_remove(entry);
		piece->is_counted = holdings_at(KIND_POOL_ENDED, piece->pool);
	}
	holdings_unlock();
}

void piece_put_back(const struct piece *piece)
{
	pieces_add(piece->pool, piece->pointer);
}

/* One less; with the last the pool is gone. */
static void count_off(uint64_t pool)
{
	struct holding gone = {.kind = KIND_NONE};

	holdings_lock();
	struct holding *entry = holdings_at(KIND_POOL_ENDED, pool);

	if (entry && --entry->handles == 0) {
		gone = *entry;
		holdings_remove(entry);
	}
	holdings_unlock();
	if (gone.kind == KIND_NONE)
		return;
	atomic_fetch_sub(&ended, 1);
	account_adjust(gone.card, ACCOUNT_USED, gone.bytes, 0);
}

void piece_freed(const struct piece *piece)
{
	if (piece->is_counted)
		count_off(piece->pool);
}

/* Tells when the stream has come this far; NULL where there is no event to be had. */
static CUevent event_in(CUstream stream)
{
	CUevent event;

	if (!cuda.cuEventCreate || !cuda.cuEventRecord || !cuda.cuEventQuery ||
	    !cuda.cuEventDestroy_v2 ||
	    cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return NULL;
	if (cuda.cuEventRecord(event, stream) == CUDA_SUCCESS)
		return event;
	cuda.cuEventDestroy_v2(event);
	return NULL;
}

void piece_freed_in(const struct piece *piece, CUstream stream)
{
	if (!piece->is_counted)
		return;
	const CUstreamCaptureMode mode = capture_exempt();
	const CUevent event = event_in(stream);
	const struct holding going = {.key = (uint64_t)(uintptr_t)event,
				      .kind = KIND_PIECE_GOING,
				      .card = CARD_FOREIGN,
				      .context = (uint64_t)(uintptr_t)context_current(),
				      .other = piece->pool};

	if (!event || !holdings_put(&going)) {
		/* Of another context than the current one, for example. */
		if (event)
			cuda.cuEventDestroy_v2(event);
		if (cuda.cuStreamSynchronize)
			cuda.cuStreamSynchronize(stream);
		count_off(piece->pool);
	}
	capture_restore(mode);
}

bool pieces_pool_ended(uint64_t pool, int card, uint64_t bytes)
{
	struct holding entry = {
		.key = pool, .kind = KIND_POOL_ENDED, .card = (int16_t)card, .bytes = bytes};
	uint32_t place = 0;

	if (!pool)
		return false;
	holdings_lock();
	for (const struct holding *piece; (piece = holdings_next(KIND_PIECE, &place));)
		entry.handles += piece->other == pool;
	const bool is_out = entry.handles && holdings_add(&entry);

	holdings_unlock();
	if (is_out)
		atomic_fetch_add(&ended, 1);
	return is_out;
}

void pieces_follow(void)
{
	uint32_t place = 0;

	if (!atomic_load_explicit(&ended, memory_order_relaxed))
		return;
	const CUstreamCaptureMode mode = capture_exempt();

	for (;;) {
		struct holding going;

		holdings_lock();
		const struct holding *entry = holdings_next(KIND_PIECE_GOING, &place);
		const uint64_t key = entry ? entry->key : 0;

		holdings_unlock();
		if (!key)
			break;
		const CUevent event = (CUevent)(uintptr_t)key;

		if (cuda.cuEventQuery(event) != CUDA_ERROR_NOT_READY &&
		    holdings_take(KIND_PIECE_GOING, key, &going)) {
			cuda.cuEventDestroy_v2(event);
			count_off(going.other);
		}
	}
	capture_restore(mode);
}

void pieces_forget_context(CUcontext context)
{
	struct holding going;
	uint32_t place = 0;

	/* Its events went with it. */
	while (context && atomic_load(&ended) &&
	       holdings_take_of(KIND_PIECE_GOING, (uint64_t)(uintptr_t)context, &place, &going))
		count_off(going.other);
}
