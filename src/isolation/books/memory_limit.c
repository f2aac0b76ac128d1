/* Reserving and releasing bytes of the slice under the region's lock. */
#include "books/memory_limit.h"

#include "books/slice_region.h"
#include "driver/timer.h"
#include "slice/killpoint.h"
#include "slice/slice.h"

#include <stdatomic.h>

/* How long a refusal waits for the calls of others; one that lasts longer hangs. */
#define OTHERS_NS 5000000000u
#define OTHERS_NAP_NS 20000u
/* After each such time dead processes are looked for. */
#define OTHERS_ASK_NS 10000000u

/* Low half: this process's calls that have not come back. High half: how many there were. */
#define ONE_CALL (1ull << 32)

static _Atomic uint64_t calls;

void calls_begin(void)
{
	atomic_fetch_add(&calls, ONE_CALL + 1);
}

void calls_end(void)
{
	atomic_fetch_sub(&calls, 1);
}

bool calls_are_back(uint64_t *moment)
{
	*moment = atomic_load(&calls);
	return !(uint32_t)*moment;
}

void calls_after_fork(void)
{
	atomic_store(&calls, 0);
}

/* What this thread has reserved for its own calls that have not come back. */
static __thread uint64_t own_unsettled __attribute__((tls_model("initial-exec")));

static const struct account_sources *_Atomic sources; /* NULL: not registered yet */

void account_register(const struct account_sources *all)
{
	atomic_store(&sources, all);
}

bool account_follow(int card)
{
	const struct account_sources *known = sources;

	return !known || known->follow(card);
}

uint64_t account_limit(int card)
{
	slice_follow_limits();
	return card < 0 ? 0 : slice_limits()->cards[card].memory_bytes;
}

static uint64_t *cell(int card, int slot, enum account_column column)
{
	struct region_card *books = &slice_region()->cards[card];

	return column == ACCOUNT_USED ? &books->used_bytes[slot] : &books->overhead_bytes[slot];
}

/* Under the lock: what is left of the slice; nothing while its new limits cannot be read. */
static uint64_t room(int card)
{
	if (!slice_follow_limits())
		return 0;
	const uint64_t held = region_held(slice_region(), (unsigned)card);
	const uint64_t limit = slice_limits()->cards[card].memory_bytes;

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

/* What is reserved for calls has changed; under the lock where a column changes with it. */
static void set_unsettled(int slot, uint64_t more, uint64_t less)
{
	own_unsettled += more - less;
	if (slot >= 0)
		atomic_fetch_add(&slice_region()->slots[slot].unsettled_bytes, more - less);
}

/* Under the lock: would it fit if no call of others took anything? */
static bool may_fit_later(int card, uint64_t bytes)
{
	const struct region *region = slice_region();
	uint64_t may_come = room(card);

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++)
		if (__builtin_add_overflow(may_come, atomic_load(&region->slots[i].unsettled_bytes),
					   &may_come))
			return true;
	/* A thread that has something reserved does not wait: others may be waiting for it. */
	return !own_unsettled && bytes <= may_come;
}

/* One try. `may_reap`: look for dead processes when it would not fit. */
static CUresult try_reserve(int card, enum account_column column, uint64_t bytes, bool may_reap,
			    bool *may_wait)
{
	struct region *region = slice_region();
	const int slot = lock_slot(card);
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (slot < 0)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (bytes <= room(card) || (may_reap && region_reap(region) && bytes <= room(card))) {
		KILLPOINT(reserve_before_add);
		*cell(card, slot, column) += bytes;
		set_unsettled(slot, bytes, 0);
		KILLPOINT(reserve_after_add);
		result = CUDA_SUCCESS;
	}
	*may_wait = result != CUDA_SUCCESS && may_fit_later(card, bytes);
	region_unlock(region);
	return result;
}

/*
 * A call may take less than was reserved for it: whole chunks for a pool, a graph's blocks. So what
 * would fit without the reservations of others is not refused before their calls are back.
 */
static CUresult try_beside_others(int card, enum account_column column, uint64_t bytes)
{
	const uint64_t begin_ns = timer_real_now_ns();
	uint64_t asked_ns = 0;
	bool may_wait;

	for (;;) {
		const uint64_t now_ns = timer_real_now_ns();
		const bool may_reap = now_ns - asked_ns >= OTHERS_ASK_NS;
		const CUresult result = try_reserve(card, column, bytes, may_reap, &may_wait);

		if (result != CUDA_ERROR_OUT_OF_MEMORY || !may_wait ||
		    now_ns - begin_ns >= OTHERS_NS)
			return result;
		asked_ns = may_reap ? now_ns : asked_ns;
		calls_end();
		timer_real_nap(OTHERS_NAP_NS);
		calls_begin();
	}
}

CUresult account_reserve_now(int card, enum account_column column, uint64_t bytes)
{
	const struct account_sources *known = sources;
	bool ignored;

	if (bytes == 0)
		return CUDA_SUCCESS;
	if (card < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (known)
		known->refresh(card, bytes);
	calls_begin();
	const CUresult result = try_reserve(card, column, bytes, false, &ignored);

	if (result != CUDA_SUCCESS)
		calls_end();
	return result;
}

CUresult account_reserve(int card, enum account_column column, uint64_t bytes)
{
	CUresult result = account_reserve_now(card, column, bytes);
	const struct account_sources *known = sources;

	if (result == CUDA_ERROR_OUT_OF_MEMORY && card >= 0) {
		if (known)
			known->reclaim(card);
		calls_begin();
		result = try_beside_others(card, column, bytes);
		if (result != CUDA_SUCCESS)
			calls_end();
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			atomic_fetch_add_explicit(&slice_region()->cards[card].refused_total, 1,
						  memory_order_relaxed);
	}
	KILLPOINT(reserve_done);
	return result;
}

static void add(int card, enum account_column column, uint64_t more, uint64_t less,
		uint64_t settled)
{
	const int slot = more == less ? -1 : lock_slot(card);

	if (slot < 0) {
		set_unsettled(slice_slot(), 0, settled);
		return;
	}
	uint64_t *bytes = cell(card, slot, column);

	KILLPOINT(settle_before_add);
	if (__builtin_add_overflow(*bytes, more, bytes))
		*bytes = UINT64_MAX;
	*bytes = *bytes < less ? 0 : *bytes - less;
	set_unsettled(slot, 0, settled);
	region_unlock(slice_region());
}

void account_settle(int card, enum account_column column, uint64_t reserved, uint64_t taken)
{
	add(card, column, taken, reserved, reserved);
	/* A reservation of nothing was never begun. */
	if (reserved && card >= 0)
		calls_end();
}

void account_adjust(int card, enum account_column column, uint64_t from, uint64_t to)
{
	atomic_fetch_add(&calls, ONE_CALL);
	add(card, column, to, from, 0);
}

static uint64_t beyond(uint64_t bytes, uint64_t less)
{
	return bytes > less ? bytes - less : 0;
}

bool account_set_overhead(int card, const struct account_look *look)
{
	const int slot = lock_slot(card);

	if (slot < 0)
		return false;
	const bool is_as_then = atomic_load(&calls) == look->moment;

	if (is_as_then) {
		const uint64_t used = *cell(card, slot, ACCOUNT_USED);
		const uint64_t least = beyond(look->listed, used + look->imported);
		const uint64_t most = beyond(look->listed, beyond(used, look->managed));

		*cell(card, slot, ACCOUNT_OVERHEAD) = look->expected < least  ? least
						      : look->expected > most ? most
									      : look->expected;
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
