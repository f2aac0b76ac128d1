/*
 * Three ways to know, best first: NVML's figure for this process, less what it
 * asked for; the change of the card's total while the region's lock keeps our
 * other processes still; a table.
 */
#include "overhead.h"

#include "account.h"
#include "cards.h"
#include "charge.h"
#include "driver.h"
#include "killpoint.h"
#include "probe.h"
#include "slice.h"
#include "table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define MIB (1024ull * 1024)

/* A change of the card's total beyond this is a neighbour's, not our context's. */
#define MOST_BELIEVED (4096 * MIB)

/* A look at NVML costs what it costs; at most this part of the time is spent on it. */
enum { LOOK_PART = 20 };

static pthread_mutex_t making_context = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool is_suspect;
static _Atomic uint64_t look_again_ns; /* not before, on a mere suspicion */
static atomic_int contexts[LIMITS_CARDS]; /* of this process, by card */

void overhead_after_fork(void)
{
	making_context = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		atomic_store(&contexts[i], 0);
	charge_after_fork();
}

/* Last resort: contexts grow with the card's multiprocessors (107 MiB at 34, 555 at 188). */
static uint64_t usual_context_bytes(CUdevice device)
{
	int count = 0;

	if (!cuda.cuDeviceGetAttribute ||
	    cuda.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
		    CUDA_SUCCESS)
		count = 132;
	return (count < 34 ? 107u : 107u + (unsigned)(count - 34) * 3u) * MIB;
}

/* The whole card: from NVML, or from the current context where that is on this card. */
static bool card_used(int card, uint64_t *bytes)
{
	size_t free_bytes, total_bytes;
	int current;

	if (probe_card_used(card, bytes))
		return true;
	if (card_current(&current) != CUDA_SUCCESS || current != card ||
	    cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
		return false;
	*bytes = total_bytes - free_bytes;
	return true;
}

static bool has_context(int card)
{
	return card >= 0 && atomic_load(&contexts[card]) > 0;
}

static uint64_t *known_cost(const struct overhead_context *making)
{
	struct region_card *books = &slice_region()->cards[making->card];

	return making->is_first ? &books->first_context_bytes : &books->next_context_bytes;
}

CUresult overhead_begin_context(struct overhead_context *making, CUdevice device)
{
	*making = (struct overhead_context){ .card = card_of_device(device) };
	if (making->card < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&making_context);
	uint64_t listed = 0;
	const bool has_list = probe_own_listing(making->card, &listed);

	making->was_listed = !has_list || listed > 0;
	making->is_first = !has_context(making->card);
	making->expected = __atomic_load_n(known_cost(making), __ATOMIC_RELAXED);
	if (making->expected) {
		const CUresult result =
			account_reserve(making->card, ACCOUNT_OVERHEAD, making->expected);

		if (result != CUDA_SUCCESS) {
			pthread_mutex_unlock(&making_context);
			return result;
		}
	} else if (!(has_list && probe_knows_pid())) {
		/* Nobody knows the price yet: watch the card while our others stand still. */
		slice_slot();
		making->is_locked = region_lock(slice_region());
	}
	making->knew_before = making->is_locked && card_used(making->card, &making->before);
	KILLPOINT(context_begun);
	driver_go_inside();
	return CUDA_SUCCESS;
}

/* Under the region's lock: the change of the card's total, if it can be ours. */
static bool measured_change(const struct overhead_context *making, uint64_t *cost)
{
	uint64_t after;

	if (!making->knew_before || !card_used(making->card, &after) || after <= making->before ||
	    after - making->before > MOST_BELIEVED)
		return false;
	*cost = after - making->before;
	return true;
}

static void learn_cost(struct overhead_context *making, uint64_t cost)
{
	uint64_t *known = known_cost(making);

	if (cost > *known)
		__atomic_store_n(known, cost, __ATOMIC_RELAXED);
}

/* With the region's lock held since before the call; gives it back. */
static uint64_t settle_locked(struct overhead_context *making, CUdevice device, bool is_made)
{
	struct region *region = slice_region();
	const int slot = slice_slot_locked();
	uint64_t cost = 0;

	if (is_made) {
		if (!measured_change(making, &cost))
			cost = making->is_first ? usual_context_bytes(device) : 0;
		learn_cost(making, cost);
		if (slot >= 0)
			region->cards[making->card].overhead_bytes[slot] += cost;
	}
	region_unlock(region);
	return cost;
}

/* What NVML holds against this process beyond what it asked for. */
static bool listed_overhead(int card, uint64_t *overhead)
{
	uint64_t listed, sequence;

	if (charge_managed(card) || !account_is_still(&sequence) ||
	    !probe_own_listing(card, &listed) || !listed ||
	    !account_set_overhead(card, listed, sequence))
		return false;
	*overhead = listed;
	return true;
}

static uint64_t settle_listed(struct overhead_context *making, bool is_made)
{
	const uint64_t own_before = account_own(making->card) - making->expected;
	uint64_t listed;

	/* The reservation ends before the look, or the books would never be still. */
	account_settle(making->card, ACCOUNT_OVERHEAD, making->expected,
		       is_made ? making->expected : 0);
	if (!is_made || !probe_own_listing(making->card, &listed))
		return making->expected;
	probe_learn(making->was_listed, listed > 0);
	if (!probe_knows_pid() || !listed_overhead(making->card, &listed))
		return making->expected;
	const uint64_t cost = listed > own_before ? listed - own_before : 0;
	struct region *region = slice_region();

	if (cost <= MOST_BELIEVED && region_lock(region)) {
		learn_cost(making, cost);
		region_unlock(region);
	}
	return cost;
}

void overhead_end_context(struct overhead_context *making, CUresult result, CUcontext context)
{
	const bool is_made = result == CUDA_SUCCESS && context;
	CUdevice device = 0;
	uint64_t cost;

	KILLPOINT(context_made);
	card_device(making->card, &device);
	if (making->is_locked) {
		uint64_t listed = 0;

		cost = settle_locked(making, device, is_made);
		/* Next time the better way may be open. */
		if (is_made && probe_own_listing(making->card, &listed))
			probe_learn(making->was_listed, listed > 0);
	} else {
		cost = settle_listed(making, is_made);
	}
	driver_come_back();
	if (is_made) {
		const struct table_entry entry = { .key = (uint64_t)(uintptr_t)context,
						   .kind = KIND_CONTEXT,
						   .card = (int16_t)making->card,
						   .bytes = cost };
		table_put(&entry);
		atomic_fetch_add(&contexts[making->card], 1);
		overhead_suspect();
	}
	pthread_mutex_unlock(&making_context);
}

void overhead_forget_context(CUcontext context)
{
	struct table_entry entry;
	uint64_t ignored;

	charge_forget_context(context);
	if (!table_take(KIND_CONTEXT, (uint64_t)(uintptr_t)context, &entry))
		return;
	atomic_fetch_sub(&contexts[entry.card], 1);
	account_adjust(entry.card, ACCOUNT_OVERHEAD, entry.bytes, 0);
	if (probe_knows_pid())
		listed_overhead(entry.card, &ignored);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void overhead_suspect(void)
{
	if (!atomic_load_explicit(&is_suspect, memory_order_relaxed))
		atomic_store_explicit(&is_suspect, true, memory_order_relaxed);
}

void overhead_refresh_now(int card)
{
	uint64_t ignored;

	if (!probe_knows_pid() || !has_context(card))
		return;
	const uint64_t begin_ns = now_ns();

	atomic_store(&is_suspect, false);
	if (!listed_overhead(card, &ignored))
		atomic_store(&is_suspect, true);
	const uint64_t end_ns = now_ns();

	atomic_store(&look_again_ns, end_ns + (end_ns - begin_ns) * LOOK_PART);
}

void overhead_refresh(int card)
{
	if (atomic_load_explicit(&is_suspect, memory_order_relaxed) &&
	    now_ns() >= atomic_load(&look_again_ns))
		overhead_refresh_now(card);
}

/* NVML tells us afterwards; without it the card's total must be watched from before. */
void overhead_begin_change(struct overhead_change *change, bool is_large)
{
	*change = (struct overhead_change){ .card = CARD_FOREIGN, .is_large = is_large };
	if (card_current(&change->card) != CUDA_SUCCESS || change->card < 0 || probe_knows_pid())
		return;
	slice_slot();
	if (!region_lock(slice_region()))
		return;
	change->is_locked = true;
	if (!card_used(change->card, &change->before))
		change->before = UINT64_MAX;
	driver_go_inside();
}

void overhead_end_change(struct overhead_change *change)
{
	struct region *region = slice_region();
	uint64_t after;

	if (!change->is_locked) {
		overhead_suspect();
		if (change->is_large)
			overhead_refresh_now(change->card);
		return;
	}
	driver_come_back();
	const int slot = slice_slot_locked();

	if (slot >= 0 && card_used(change->card, &after) && after > change->before &&
	    after - change->before <= MOST_BELIEVED)
		region->cards[change->card].overhead_bytes[slot] += after - change->before;
	region_unlock(region);
}
