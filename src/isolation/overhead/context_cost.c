/*
 * What contexts cost: reserved when it is known, found out when it is not, by NVML's figure or by a
 * table where it has none. The container's processes find it out for each other.
 */
#include "overhead/overhead.h"

#include "books/memory_limit.h"
#include "books/memory_charge.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "books/slice_region.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "driver/driver.h"
#include "slice/killpoint.h"
#include "slice/slice.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_mutex_t making_context = PTHREAD_MUTEX_INITIALIZER;

/* More than that is not one context's. */
#define MOST_BELIEVED (4096ull * 1024 * 1024)
static atomic_uint ended_contexts; /* handles may be given out again */

void overhead_after_fork(void)
{
	making_context = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	overhead_forget_counts();
}

#define MIB (1024ull * 1024)

/* How a price was found out: so many times NVML had no figure, or it had one. */
enum { UNKNOWN, ASKED_ENOUGH = 4, LISTED = 255 };

static uint64_t attribute(CUdevice device, CUdevice_attribute which, int otherwise)
{
	int value = 0;

	if (!cuda.cuDeviceGetAttribute ||
	    cuda.cuDeviceGetAttribute(&value, which, device) != CUDA_SUCCESS || value <= 0)
		value = otherwise;
	return (uint64_t)value;
}

uint64_t overhead_threads(CUdevice device)
{
	return attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132) *
	       attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048);
}

/*
 * Most of it is room for each thread that the card can run at once. Seen elsewhere: T4 105 MiB
 * (107 here), RTX 4060 Ti 107 (128), Titan V 320 (332), RTX PRO 6000 555 (561).
 */
static uint64_t usual_price(CUdevice device)
{
	return 32 * MIB + overhead_threads(device) * 1920;
}

/* What this container's processes have found out; 0: nothing. */
static uint64_t price(int card, bool is_first, bool *is_sure)
{
	struct region_card *books = &slice_region()->cards[card];

	*is_sure = __atomic_load_n(&books->context_source[!is_first], __ATOMIC_RELAXED) >=
		   ASKED_ENOUGH;
	return __atomic_load_n(&books->context_bytes[!is_first], __ATOMIC_RELAXED);
}

/* By NVML, or else by the table. */
static void learn_price(int card, bool is_first, bool is_listed, uint64_t bytes)
{
	struct region_card *books = &slice_region()->cards[card];

	if (!region_lock(slice_region()))
		return;
	const unsigned source = books->context_source[!is_first];
	const uint64_t known = books->context_bytes[!is_first];

	if (is_listed || source < ASKED_ENOUGH) {
		if (source == LISTED && known < bytes)
			bytes = known;
		__atomic_store_n(&books->context_bytes[!is_first], bytes, __ATOMIC_RELAXED);
		__atomic_store_n(&books->context_source[!is_first],
				 (uint8_t)(is_listed ? LISTED : source + 1), __ATOMIC_RELAXED);
	}
	region_unlock(slice_region());
}

CUresult overhead_begin_context(struct overhead_context *making, CUdevice device, CUcontext home)
{
	uint64_t listed;

	*making = (struct overhead_context){.device = device, .home = home};
	CUresult result = card_find(device, &making->card);

	if (result == CUDA_SUCCESS && making->card < 0)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&making_context);
	making->is_first = !overhead_has_context(making->card);
	if (!home)
		making->expected = price(making->card, making->is_first, &making->is_sure);
	result = account_reserve(making->card, ACCOUNT_OVERHEAD, making->expected);
	if (result != CUDA_SUCCESS) {
		pthread_mutex_unlock(&making_context);
		return result;
	}
	/* Where it is sure, NVML, slow to start, is asked only when it is needed. */
	if (!making->is_sure)
		making->was_listed = !nvml_own_listing(making->card, &listed) || listed;
	KILLPOINT(context_begun);
	driver_go_inside();
	return CUDA_SUCCESS;
}

/* What counts where NVML does not tell: a second context as much as a first. */
static uint64_t unlisted(const struct overhead_context *making)
{
	if (making->expected || making->home)
		return making->expected;
	return usual_price(making->device);
}

/* What it cost by NVML's figure, if there is one; `counted` is in the books for it already. */
static uint64_t ask_list(const struct overhead_context *making, uint64_t own_before,
			 uint64_t counted)
{
	uint64_t listed;

	if (!nvml_own_listing(making->card, &listed))
		listed = 0;
	nvml_learn(making->was_listed, listed > 0);
	const bool is_told = nvml_knows_pid();

	if (is_told && !overhead_measure(making->card, &listed)) {
		overhead_stale_urgently(1u << making->card);
		return counted;
	}
	const uint64_t cost = !is_told ? counted : listed > own_before ? listed - own_before : 0;

	if (!making->home && cost <= MOST_BELIEVED)
		learn_price(making->card, making->is_first, is_told, cost);
	return cost;
}

/* The reservation ends before the look, or the books would never be still. */
static uint64_t settle(const struct overhead_context *making, bool is_made)
{
	const uint64_t own_before = account_own(making->card) - making->expected;
	const uint64_t counted = is_made ? unlisted(making) : 0;

	account_settle(making->card, ACCOUNT_OVERHEAD, making->expected, counted);
	return is_made && !making->is_sure ? ask_list(making, own_before, counted) : counted;
}

void overhead_end_context(struct overhead_context *making, CUresult result, CUcontext context)
{
	const bool is_made = result == CUDA_SUCCESS && context;

	KILLPOINT(context_made);
	const uint64_t cost = settle(making, is_made);

	driver_come_back();
	if (is_made) {
		const struct holding entry = {.key = (uint64_t)(uintptr_t)context,
					      .kind = KIND_CONTEXT,
					      .card = (int16_t)making->card,
					      .context = (uint64_t)(uintptr_t)making->home,
					      .bytes = cost,
					      .tag = (uint32_t)making->device};
		holdings_put(&entry);
		overhead_count_context(making->card, !making->home, 1);
		overhead_stale_later(making->card);
		overhead_follow_expected();
	}
	pthread_mutex_unlock(&making_context);
}

static void adopt(CUcontext context)
{
	struct overhead_context making = {0};
	struct holding entry = {.key = (uint64_t)(uintptr_t)context, .kind = KIND_CONTEXT};

	if (holdings_get(KIND_CONTEXT, entry.key, &entry) ||
	    card_current(&making.card) != CUDA_SUCCESS || making.card < 0 ||
	    cuda.cuCtxGetDevice(&making.device) != CUDA_SUCCESS)
		return;
	making.is_first = !overhead_has_context(making.card);
	making.expected = price(making.card, making.is_first, &making.is_sure);
	entry.card = (int16_t)making.card;
	entry.bytes = unlisted(&making);
	if (!holdings_put(&entry))
		return;
	overhead_count_context(making.card, true, 1);
	account_adjust(making.card, ACCOUNT_OVERHEAD, 0, entry.bytes);
	overhead_follow_expected();
	overhead_stale_urgently(1u << making.card);
}

void overhead_adopt_current(void)
{
	static __thread CUcontext known __attribute__((tls_model("initial-exec")));
	static __thread unsigned known_at __attribute__((tls_model("initial-exec")));
	const unsigned now = atomic_load_explicit(&ended_contexts, memory_order_relaxed);
	const CUcontext context = context_current();

	if (!context || (context == known && now == known_at))
		return;
	/* While one is being made, that may be this one: the next call looks again. */
	if (pthread_mutex_trylock(&making_context) != 0)
		return;
	adopt(context);
	pthread_mutex_unlock(&making_context);
	known = context;
	known_at = now;
}

static void forget(const struct holding *entry)
{
	overhead_count_context(entry->card, !entry->context, -1);
	if (!entry->context)
		overhead_forget_launches();
	account_adjust(entry->card, ACCOUNT_OVERHEAD, entry->bytes, 0);
}

/* The card that it was on; CARD_FOREIGN when it was none of the slice. */
static int forget_context(CUcontext context)
{
	const uint64_t key = (uint64_t)(uintptr_t)context;
	struct holding entry;

	charge_forget_context(context);
	holdings_forget(KIND_IMPORT, key, NULL);
	holdings_forget(KIND_IMAGE, key, images_gone);
	atomic_fetch_add(&ended_contexts, 1);
	if (!holdings_take(KIND_CONTEXT, key, &entry))
		return CARD_FOREIGN;
	holdings_forget(KIND_CONTEXT, key, forget);
	forget(&entry);
	return entry.card;
}

void overhead_end_forget(CUcontext ended)
{
	const int card = ended ? forget_context(ended) : CARD_FOREIGN;
	uint64_t ignored;

	overhead_follow_expected();
	/* Before the look, or the books would never be still. */
	calls_end();
	/* Nothing is listed after the last one: its code shows to be gone when there is another. */
	if (card >= 0 && nvml_knows_pid() && !overhead_measure(card, &ignored))
		overhead_stale_urgently(1u << card);
}
