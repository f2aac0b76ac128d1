/* What contexts cost: reserved when it is known, learnt when it is not. */
#include "overhead.h"
#include "pieces.h"

#include "account.h"
#include "cards.h"
#include "charge.h"
#include "driver.h"
#include "killpoint.h"
#include "probe.h"
#include "seen.h"
#include "slice.h"
#include "table.h"

#include <pthread.h>
#include <stdatomic.h>

#define MIB (1024ull * 1024)

static pthread_mutex_t making_context = PTHREAD_MUTEX_INITIALIZER;
static atomic_int contexts[LIMITS_CARDS]; /* of this process, by card */
static atomic_int all_contexts;

void overhead_after_fork(void)
{
	making_context = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		atomic_store(&contexts[i], 0);
	atomic_store(&all_contexts, 0);
	charge_after_fork();
	seen_after_fork();
}

bool overhead_has_context(int card)
{
	return card >= 0 && atomic_load(&contexts[card]) > 0;
}

bool overhead_has_several_contexts(void)
{
	return atomic_load_explicit(&all_contexts, memory_order_relaxed) > 1;
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

static uint64_t *known_cost(const struct overhead_context *making)
{
	struct region_card *books = &slice_region()->cards[making->card];

	return making->is_first ? &books->first_context_bytes : &books->next_context_bytes;
}

/*
 * Nobody knows the price yet. NVML's figure afterwards will tell it, if that is
 * ours; else the card is watched while our other processes stand still.
 */
static void watch(struct overhead_context *making)
{
	uint64_t listed = 0;
	const bool has_list = probe_own_listing(making->card, &listed);

	making->was_listed = !has_list || listed > 0;
	if (has_list && probe_knows_pid())
		return;
	making->is_locked = overhead_stop_others();
	making->knew_before =
		making->is_locked && overhead_card_used(making->card, &making->before);
}

static CUresult begin(struct overhead_context *making)
{
	if (making->card < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&making_context);
	making->is_first = !overhead_has_context(making->card);
	if (!making->home)
		making->expected = __atomic_load_n(known_cost(making), __ATOMIC_RELAXED);
	if (making->expected) {
		/* The price is known: NVML, slow to start, is asked only when it is needed. */
		const CUresult result =
			account_reserve(making->card, ACCOUNT_OVERHEAD, making->expected);

		if (result != CUDA_SUCCESS) {
			pthread_mutex_unlock(&making_context);
			return result;
		}
	} else {
		watch(making);
	}
	KILLPOINT(context_begun);
	driver_go_inside();
	return CUDA_SUCCESS;
}

CUresult overhead_begin_context(struct overhead_context *making, CUdevice device)
{
	*making = (struct overhead_context){.card = card_of_device(device)};
	return begin(making);
}

CUresult overhead_begin_green(struct overhead_context *making, CUdevice device, CUcontext home)
{
	*making = (struct overhead_context){.card = card_of_device(device), .home = home};
	return begin(making);
}

/* Under the region's lock: the change of the card's total, if it can be ours. */
static bool measured_change(const struct overhead_context *making, uint64_t *cost)
{
	uint64_t after;

	if (!making->knew_before || !overhead_card_used(making->card, &after) ||
	    after <= making->before || after - making->before > OVERHEAD_MOST_BELIEVED)
		return false;
	*cost = after - making->before;
	return true;
}

static void learn_cost(struct overhead_context *making, uint64_t cost)
{
	uint64_t *known = known_cost(making);

	if (!making->home && cost > *known)
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
	overhead_let_others();
	return cost;
}

static uint64_t settle_listed(struct overhead_context *making, bool is_made)
{
	const uint64_t own_before = account_own(making->card) - making->expected;
	uint64_t listed;

	/* The reservation ends before the look, or the books would never be still. */
	account_settle(making->card, ACCOUNT_OVERHEAD, making->expected,
		       is_made ? making->expected : 0);
	if (!is_made || making->expected || !probe_own_listing(making->card, &listed))
		return making->expected;
	probe_learn(making->was_listed, listed > 0);
	if (!probe_knows_pid() || !overhead_measure(making->card, &listed))
		return making->expected;
	const uint64_t cost = listed > own_before ? listed - own_before : 0;
	struct region *region = slice_region();

	if (cost <= OVERHEAD_MOST_BELIEVED && region_lock(region)) {
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
		const struct table_entry entry = {.key = (uint64_t)(uintptr_t)context,
						  .kind = KIND_CONTEXT,
						  .card = (int16_t)making->card,
						  .context = (uint64_t)(uintptr_t)making->home,
						  .bytes = cost};
		table_put(&entry);
		atomic_fetch_add(&contexts[making->card], 1);
		/* Code is its home's. */
		if (!making->home)
			atomic_fetch_add(&all_contexts, 1);
		overhead_suspect_later(making->card);
	}
	pthread_mutex_unlock(&making_context);
}

static void forget(const struct table_entry *entry)
{
	atomic_fetch_sub(&contexts[entry->card], 1);
	if (!entry->context) {
		atomic_fetch_sub(&all_contexts, 1);
		overhead_forget_launches();
	}
	account_adjust(entry->card, ACCOUNT_OVERHEAD, entry->bytes, 0);
}

void overhead_forget_context(CUcontext context)
{
	const uint64_t key = (uint64_t)(uintptr_t)context;
	struct table_entry entry, green;
	uint64_t ignored;
	uint32_t place = 0;

	charge_forget_context(context);
	pieces_forget_context(context);
	if (!table_take(KIND_CONTEXT, key, &entry))
		return;
	while (table_take_of(KIND_CONTEXT, key, &place, &green))
		forget(&green);
	forget(&entry);
	if (probe_knows_pid())
		overhead_measure(entry.card, &ignored);
}
