/* What contexts cost: reserved when it is known, found out when it is not. */
#include "unasked/overhead.h"

#include "books/account.h"
#include "books/calls.h"
#include "books/charge.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "driver/driver.h"
#include "slice/killpoint.h"
#include "unasked/images.h"
#include "unasked/imports.h"
#include "unasked/launched.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_mutex_t making_context = PTHREAD_MUTEX_INITIALIZER;
static atomic_int contexts[LIMITS_CARDS]; /* of this process, by card */
static atomic_int all_contexts;

/* More than that is not one context's. */
#define MOST_BELIEVED (4096ull * 1024 * 1024)
static atomic_uint ended_contexts; /* handles may be given out again */

void overhead_after_fork(void)
{
	making_context = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		atomic_store(&contexts[i], 0);
	atomic_store(&all_contexts, 0);
	launched_after_fork();
	overhead_code_after_fork();
}

bool overhead_has_context(int card)
{
	return card >= 0 && atomic_load(&contexts[card]) > 0;
}

bool overhead_has_several_contexts(void)
{
	return atomic_load_explicit(&all_contexts, memory_order_relaxed) > 1;
}

CUresult overhead_begin_context(struct overhead_context *making, CUdevice device, CUcontext home)
{
	uint64_t listed;

	*making = (struct overhead_context){.home = home};
	CUresult result = card_find(device, &making->card);

	if (result == CUDA_SUCCESS && making->card < 0)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&making_context);
	making->is_first = !overhead_has_context(making->card);
	making->usual = overhead_usual_price(device);
	if (!home)
		making->expected = overhead_price(making->card, making->is_first, &making->is_sure);
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

/* What is counted where NVML does not tell: a second context may cost less, but nobody knows. */
static uint64_t unlisted(const struct overhead_context *making)
{
	if (making->expected || making->home)
		return making->expected;
	return making->usual;
}

/* What NVML says that it cost, if it knows us; `counted` is in the books for it already. */
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
		overhead_learn_price(making->card, making->is_first, is_told, cost);
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
					      .bytes = cost};
		holdings_put(&entry);
		atomic_fetch_add(&contexts[making->card], 1);
		/* Code is its home's. */
		if (!making->home)
			atomic_fetch_add(&all_contexts, 1);
		overhead_stale_later(making->card);
		overhead_follow_expected();
	}
	pthread_mutex_unlock(&making_context);
}

static void adopt(CUcontext context)
{
	struct overhead_context making = {0};
	struct holding entry = {.key = (uint64_t)(uintptr_t)context, .kind = KIND_CONTEXT};
	CUdevice device;

	if (holdings_get(KIND_CONTEXT, entry.key, &entry) ||
	    card_current(&making.card) != CUDA_SUCCESS || making.card < 0 ||
	    cuda.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return;
	making.is_first = !overhead_has_context(making.card);
	making.usual = overhead_usual_price(device);
	making.expected = overhead_price(making.card, making.is_first, &making.is_sure);
	entry.card = (int16_t)making.card;
	entry.bytes = unlisted(&making);
	if (!holdings_put(&entry))
		return;
	atomic_fetch_add(&contexts[making.card], 1);
	atomic_fetch_add(&all_contexts, 1);
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
	atomic_fetch_sub(&contexts[entry->card], 1);
	if (!entry->context) {
		atomic_fetch_sub(&all_contexts, 1);
		overhead_forget_launches();
	}
	account_adjust(entry->card, ACCOUNT_OVERHEAD, entry->bytes, 0);
}

/* The card that it was on; CARD_FOREIGN when it was none of ours. */
static int forget_context(CUcontext context)
{
	const uint64_t key = (uint64_t)(uintptr_t)context;
	struct holding entry, green;
	uint32_t place = 0;

	charge_forget_context(context);
	imports_forget_context(context);
	images_forget_context(context);
	atomic_fetch_add(&ended_contexts, 1);
	if (!holdings_take(KIND_CONTEXT, key, &entry))
		return CARD_FOREIGN;
	while (holdings_take_of(KIND_CONTEXT, key, &place, &green))
		forget(&green);
	forget(&entry);
	return entry.card;
}

void overhead_begin_forget(void)
{
	calls_begin();
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
