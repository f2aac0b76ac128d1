/* Reserving and releasing bytes of the slice under the region's lock. */
#include "books/account.h"

#include "books/calls.h"
#include "books/slice_region.h"
#include "books/totals.h"
#include "driver/timer.h"
#include "slice/killpoint.h"
#include "slice/slice.h"

#include <stdatomic.h>

/* For calls that are out when something is to be refused. */
#define OTHERS_NS 20000000u
#define OTHERS_NAP_NS 20000u

uint64_t account_limit(int card)
{
	return card < 0 ? 0 : slice_limits()->cards[card].memory_bytes;
}

static uint64_t *cell(int card, int slot, enum account_column column)
{
	struct region_card *books = &slice_region()->cards[card];

	return column == ACCOUNT_USED ? &books->used_bytes[slot] : &books->overhead_bytes[slot];
}

/* Under the lock: what is left of the slice. */
static uint64_t room(int card)
{
	const uint64_t held = region_held(slice_region(), (unsigned)card);
	const uint64_t limit = account_limit(card);

	return held < limit ? limit - held : 0;
}

static bool lock(void)
{
	if (region_lock(slice_region()))
		return true;
	slice_close("the lock of the shared region is beyond repair");
	return false;
}

/* For this process's slot; -1: the lock is not taken, and nothing can be counted. */
static int lock_slot(int card)
{
	if (card < 0 || !lock())
		return -1;
	const int slot = slice_slot_locked();

	if (slot < 0)
		region_unlock(slice_region());
	return slot;
}

/* One try. `may_reap`: look for dead processes when it would not fit. */
static CUresult try_reserve(int card, enum account_column column, uint64_t bytes, bool may_reap)
{
	struct region *region = slice_region();
	const int slot = lock_slot(card);
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (slot < 0)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (bytes <= room(card) || (may_reap && region_reap(region) && bytes <= room(card))) {
		KILLPOINT(reserve_before_add);
		*cell(card, slot, column) += bytes;
		KILLPOINT(reserve_after_add);
		totals_publish(card);
		result = CUDA_SUCCESS;
	}
	region_unlock(region);
	return result;
}

/*
 * What is reserved for calls that are out may be more than they take: a chunk for a pool
 * that need not grow, a graph's blocks. So nothing is refused before these are back, as far
 * as a short wait helps.
 */
static CUresult try_beside_others(int card, enum account_column column, uint64_t bytes)
{
	const uint64_t end_ns = timer_real_now_ns() + OTHERS_NS;

	/* One look for the dead is enough: beside many processes it is what costs most. */
	for (bool is_first = true;; is_first = false) {
		const uint64_t before = calls_stamp();
		const bool was_alone = calls_are_own();
		const CUresult result = try_reserve(card, column, bytes, is_first);

		if (result != CUDA_ERROR_OUT_OF_MEMORY || (was_alone && calls_stamp() == before) ||
		    timer_real_now_ns() >= end_ns)
			return result;
		calls_end();
		timer_real_nap(OTHERS_NAP_NS);
		calls_begin();
	}
}

CUresult account_try_reserve(int card, enum account_column column, uint64_t bytes)
{
	if (bytes == 0)
		return CUDA_SUCCESS;
	if (card < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	account_sources.refresh(card, bytes);
	calls_begin();
	CUresult result = try_reserve(card, column, bytes, false);

	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		calls_end();
		account_sources.reclaim(card);
		calls_begin();
		result = try_beside_others(card, column, bytes);
	}
	if (result != CUDA_SUCCESS)
		calls_end();
	KILLPOINT(reserve_done);
	return result;
}

void account_count_refusal(int card)
{
	if (card >= 0)
		atomic_fetch_add_explicit(&slice_region()->cards[card].refused_total, 1,
					  memory_order_relaxed);
}

CUresult account_reserve(int card, enum account_column column, uint64_t bytes)
{
	const CUresult result = account_try_reserve(card, column, bytes);

	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		account_count_refusal(card);
	return result;
}

/* Out before it reserves: others who find too little left wait for what is out. */
uint64_t account_reserve_rest(int card, uint64_t bytes)
{
	uint64_t got = 0;

	if (card < 0)
		return 0;
	calls_begin();
	const int slot = lock_slot(card);

	if (slot >= 0) {
		got = room(card) < bytes ? room(card) : bytes;
		*cell(card, slot, ACCOUNT_USED) += got;
		totals_publish(card);
		region_unlock(slice_region());
	}
	if (!got)
		calls_end();
	return got;
}

static void add(int card, enum account_column column, uint64_t more, uint64_t less)
{
	const int slot = more == less ? -1 : lock_slot(card);

	if (slot < 0)
		return;
	uint64_t *bytes = cell(card, slot, column);

	KILLPOINT(settle_before_add);
	if (__builtin_add_overflow(*bytes, more, bytes))
		*bytes = UINT64_MAX;
	*bytes = *bytes < less ? 0 : *bytes - less;
	totals_publish(card);
	region_unlock(slice_region());
}

void account_settle(int card, enum account_column column, uint64_t reserved, uint64_t taken)
{
	add(card, column, taken, reserved);
	/* A reservation of nothing was never begun. */
	if (reserved && card >= 0)
		calls_end();
}

void account_adjust(int card, enum account_column column, uint64_t from, uint64_t to)
{
	calls_note_change();
	add(card, column, to, from);
}

void account_begin_release(void)
{
	calls_begin();
}

void account_release(int card, enum account_column column, uint64_t bytes)
{
	add(card, column, 0, bytes);
	calls_end();
}

bool account_set_overhead(int card, uint64_t process_bytes, uint64_t moment, uint64_t *overhead)
{
	const int slot = lock_slot(card);

	if (slot < 0)
		return false;
	const bool is_as_then = calls_are_as_at(moment);

	if (is_as_then) {
		const uint64_t used = *cell(card, slot, ACCOUNT_USED);

		*overhead = process_bytes > used ? process_bytes - used : 0;
		*cell(card, slot, ACCOUNT_OVERHEAD) = *overhead;
		totals_publish(card);
	}
	region_unlock(slice_region());
	return is_as_then;
}

uint64_t account_held(int card, bool reap)
{
	uint64_t held = 0;

	if (card < 0 || !lock())
		return 0;
	if (reap)
		region_reap(slice_region());
	held = region_held(slice_region(), (unsigned)card);
	region_unlock(slice_region());
	return held;
}

uint64_t account_own(int card)
{
	const int slot = lock_slot(card);

	if (slot < 0)
		return 0;
	const uint64_t own = *cell(card, slot, ACCOUNT_USED) + *cell(card, slot, ACCOUNT_OVERHEAD);

	region_unlock(slice_region());
	return own;
}
