/*
 * Two ways to know: NVML's figure for this process, less what it asked for; or, where NVML does
 * not tell (drivers before 565.57 in a pod), what contexts and loaded images take at most.
 */
#include "overhead/overhead.h"

#include "books/memory_limit.h"
#include "books/memory_charge.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "books/pages.h"
#include "books/slice_region.h"
#include "driver/timer.h"
#include "slice/slice.h"

#include <pthread.h>
#include <stdatomic.h>

/* A look at NVML costs what it costs; at most this part of the time is spent on it. */
enum { LOOK_PART = 20 };
/* With more room than this after an allocation, new code need not be measured before it. */
#define NEAR_BYTES (512ull * 1024 * 1024)

/* A context of known price is looked at again after this. */
#define LOOK_LATER_NS 100000000u

/* What makes another look worth it, by card. */
static struct staleness {
	atomic_bool is_stale;
	/* near the cap look whatever it costs, until one that began after the last is over */
	_Atomic uint32_t urgent, looked;
	_Atomic uint64_t again_ns; /* not before, or too much time would go into it */
	_Atomic uint64_t later_ns; /* then also without a staleness; 0: no need */
} stale[LIMITS_CARDS];

/* What is in the books for code and heaps. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static uint64_t counted[LIMITS_CARDS];

static atomic_int contexts[LIMITS_CARDS]; /* of this process, by card */
static atomic_int all_contexts;

/*
 * What was launched lately. Each has two places, and the third that falls on them pushes the first
 * out: its next launch is looked at as the first was. Unused pages of the table cost nothing.
 */
enum { BITS = 20 };

static _Atomic uint64_t launched[1u << BITS];
static _Atomic uint64_t forgotten; /* so many times all of them */

/* The first of its two places; `what` becomes what stands there. */
static _Atomic uint64_t *places_of(uint64_t *what)
{
	*what ^= atomic_load_explicit(&forgotten, memory_order_relaxed) * 0xC2B2AE3D27D4EB4Full;
	*what *= 0x9E3779B97F4A7C15ull;
	return &launched[*what >> (64 - BITS) & ~1ull];
}

bool launched_has(uint64_t what)
{
	const _Atomic uint64_t *places = places_of(&what);

	return atomic_load_explicit(&places[0], memory_order_relaxed) == what ||
	       atomic_load_explicit(&places[1], memory_order_relaxed) == what;
}

void launched_add(uint64_t what)
{
	_Atomic uint64_t *places = places_of(&what);

	atomic_store(&places[1], atomic_load(&places[0]));
	atomic_store(&places[0], what);
}

void overhead_forget_counts(void)
{
	counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (unsigned i = 0; i < LIMITS_CARDS; i++) {
		atomic_store(&contexts[i], 0);
		counted[i] = 0;
	}
	atomic_store(&all_contexts, 0);
	atomic_fetch_add(&forgotten, 1);
	images_after_fork();
}

void overhead_count_context(int card, bool is_home, int more)
{
	atomic_fetch_add(&contexts[card], more);
	/* Code is a green one's home's. */
	if (is_home)
		atomic_fetch_add(&all_contexts, more);
}

bool overhead_has_context(int card)
{
	return card >= 0 && atomic_load(&contexts[card]) > 0;
}

bool overhead_has_several_contexts(void)
{
	return atomic_load_explicit(&all_contexts, memory_order_relaxed) > 1;
}

/* Of code and heaps; `prices`: bytes of the contexts themselves. */
static uint64_t code_on(int card, uint64_t *prices)
{
	const struct holding *entry;
	uint64_t heaps = 0;
	uint32_t place = 0;
	unsigned homes = 0;

	*prices = 0;
	holdings_lock();
	while ((entry = holdings_next(KIND_CONTEXT, &place))) {
		if (entry->card != card)
			continue;
		*prices += entry->bytes;
		heaps += entry->other;
		/* Code is a green one's home's. */
		homes += !entry->context;
	}
	holdings_unlock();
	return heaps + images_code(card, homes);
}

void overhead_follow_expected(void)
{
	uint64_t ignored;

	if (nvml_knows_pid())
		return;
	pthread_mutex_lock(&counting);
	for (int card = 0; card < (int)slice_limits()->card_count; card++) {
		const uint64_t due = code_on(card, &ignored);

		if (due != counted[card])
			account_adjust(card, ACCOUNT_OVERHEAD, counted[card], due);
		counted[card] = due;
	}
	pthread_mutex_unlock(&counting);
}

/* What this process holds by NVML's list, of one moment of the books; 0: it does not say. */
static bool look_at_list(int card, struct account_look *look, uint64_t *listed)
{
	uint64_t prices;

	if (!account_follow(card) || !calls_are_back(&look->moment))
		return false;
	/* Of the same moment as the books, if they do not move. */
	const uint64_t uncounted = pages_uncounted(card);

	look->imported = imports_bytes(card);
	if (!nvml_own_listing(card, listed))
		*listed = 0;
	look->listed = *listed > uncounted ? *listed - uncounted : 0;
	look->managed = charge_managed(card);
	look->expected = code_on(card, &prices);
	look->expected += prices + pages_overhead(card) - uncounted;
	/* What shrank by itself meanwhile moves the books, and ends the moment. */
	return account_follow(card);
}

bool overhead_measure(int card, uint64_t *listed)
{
	struct account_look look;
	const uint32_t urgent = atomic_load(&stale[card].urgent);

	if (!look_at_list(card, &look, listed) || (*listed && !account_set_overhead(card, &look)))
		return false;
	/* Not before: other threads shall look too. Where NVML cannot tell, nothing is urgent. */
	atomic_store(&stale[card].looked, urgent);
	return *listed;
}

void overhead_stale(int card)
{
	if (card >= 0 && !atomic_load_explicit(&stale[card].is_stale, memory_order_relaxed))
		atomic_store_explicit(&stale[card].is_stale, true, memory_order_relaxed);
}

void overhead_forget_launches(void)
{
	atomic_fetch_add(&forgotten, 1);
	for (int card = 0; card < LIMITS_CARDS; card++)
		overhead_stale(card);
}

void overhead_stale_urgently(uint32_t cards)
{
	for (; cards; cards &= cards - 1) {
		const int card = __builtin_ctz(cards);

		atomic_fetch_add(&stale[card].urgent, 1);
		overhead_stale(card);
	}
}

void overhead_stale_later(int card)
{
	if (card >= 0)
		atomic_store(&stale[card].later_ns, timer_real_now_ns() + LOOK_LATER_NS);
}

void overhead_refresh_now(int card)
{
	uint64_t ignored;

	if (!nvml_knows_pid() || !overhead_has_context(card))
		return;
	struct staleness *staleness = &stale[card];
	const uint64_t begin_ns = timer_real_now_ns();

	atomic_store(&staleness->is_stale, false);
	atomic_store(&staleness->later_ns, 0);
	if (!overhead_measure(card, &ignored))
		overhead_stale(card);
	const uint64_t end_ns = timer_real_now_ns();

	atomic_store(&staleness->again_ns, end_ns + (end_ns - begin_ns) * LOOK_PART);
}

/* May what was not measured yet make the difference? */
static bool is_near(int card, uint64_t wanted)
{
	const uint64_t limit = account_limit(card), held = account_held(card, false);

	return limit != LIMITS_NO_CAP &&
	       (held >= limit || limit - held < NEAR_BYTES || limit - held - NEAR_BYTES < wanted);
}

void overhead_refresh(int card, uint64_t wanted)
{
	if (card < 0)
		return;
	const struct staleness *staleness = &stale[card];
	const uint64_t later_ns = atomic_load_explicit(&staleness->later_ns, memory_order_relaxed);
	const bool is_stale = atomic_load_explicit(&staleness->is_stale, memory_order_relaxed);
	const bool is_urgent = atomic_load_explicit(&staleness->urgent, memory_order_relaxed) !=
			       atomic_load_explicit(&staleness->looked, memory_order_relaxed);

	if (!is_stale && !is_urgent && !later_ns)
		return;
	if (is_urgent && is_near(card, wanted)) {
		overhead_refresh_now(card);
		return;
	}
	const uint64_t time_ns = timer_real_now_ns();
	const bool is_due = is_stale || (later_ns && time_ns >= later_ns);

	if (is_due && time_ns >= atomic_load(&staleness->again_ns))
		overhead_refresh_now(card);
}
