/*
 * Three ways to know, best first: NVML's figure for this process, less what it
 * asked for; the change of the card's total while our other processes stand still;
 * a table.
 */
#include "unasked/overhead.h"

#include "books/account.h"
#include "books/calls.h"
#include "books/charge.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "books/pages.h"
#include "books/slice_region.h"
#include "books/totals.h"
#include "driver/cards.h"
#include "driver/driver.h"
#include "driver/timer.h"
#include "slice/killpoint.h"
#include "unasked/imports.h"

#include <stdatomic.h>

/* A look at NVML costs what it costs; at most this part of the time is spent on it. */
enum { LOOK_PART = 20 };
/* Neighbours that never rest: then what came is not counted, nor are they soon waited for again. */
enum { LOOK_TRIES = 20 };
#define RESTLESS_NS 10000000000u

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

static _Atomic uint64_t restless_until_ns;

/* One that is there, of this card; NULL when there is none. */
static CUcontext any_context(int card)
{
	const struct holding *entry;
	CUcontext context = NULL;
	uint32_t place = 0;

	holdings_lock();
	/* A green one is entered by way of its home. */
	while (!context && (entry = holdings_next(KIND_CONTEXT, &place)))
		if (entry->card == card && !entry->context)
			context = (CUcontext)(uintptr_t)entry->key;
	holdings_unlock();
	return context;
}

/* While others are stopped: none of our contexts can end just now. */
static bool card_used_by_context(int card, uint64_t *bytes)
{
	size_t free_bytes, total_bytes;
	int current;
	struct context_scope scope = {0};

	if (card_current(&current) != CUDA_SUCCESS || current != card)
		scope = scope_enter(any_context(card));
	const bool is_told = card_current(&current) == CUDA_SUCCESS && current == card &&
			     cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS;

	scope_end(scope);
	*bytes = is_told ? total_bytes - free_bytes : 0;
	return is_told;
}

/* Managed memory is the card's only while it is there: with any of it the list proves nothing. */
bool overhead_measure(int card, uint64_t *listed_bytes)
{
	uint64_t listed, moment, overhead;
	const uint32_t urgent = atomic_load(&stale[card].urgent);

	if (charge_managed(card) || !calls_are_back(&moment))
		return false;
	/* Of the same moment as the books, if they do not move. */
	const uint64_t unasked = pages_unasked(card), uncounted = pages_uncounted(card);
	const uint64_t others = uncounted + imports_listed(card);
	const bool is_listed = nvml_own_listing(card, &listed) && listed;

	if (is_listed &&
	    !account_set_overhead(card, listed > others ? listed - others : 0, moment, &overhead))
		return false;
	/* Not before: other threads shall look too. Where NVML cannot tell, nothing is urgent. */
	atomic_store(&stale[card].looked, urgent);
	if (!is_listed)
		return false;
	const uint64_t least =
		__atomic_load_n(&slice_region()->cards[card].context_bytes[0], __ATOMIC_RELAXED);

	if (!pages_check(overhead + uncounted, unasked, least))
		account_adjust(card, ACCOUNT_OVERHEAD, 0, uncounted);
	*listed_bytes = listed;
	return true;
}

void overhead_stale(int card)
{
	if (card >= 0 && !atomic_load_explicit(&stale[card].is_stale, memory_order_relaxed))
		atomic_store_explicit(&stale[card].is_stale, true, memory_order_relaxed);
}

void overhead_stale_all(void)
{
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

/* The card's total and what neighbours hold of it, of one moment; false while they change it. */
static bool read_once(int card, struct card_usage *look, bool may_wait)
{
	const struct totals before = totals_of_neighbours(card, may_wait);

	look->is_known = look->is_of_context ? card_used_by_context(card, &look->used)
					     : nvml_card_used(card, &look->used);
	const struct totals after = totals_of_neighbours(card, may_wait);

	look->neighbours = after;
	return before.is_still && after.is_still && before.stamp == after.stamp;
}

static void read_same_way(int card, struct card_usage *look)
{
	const bool may_wait = timer_real_now_ns() >= atomic_load(&restless_until_ns);
	unsigned tries = may_wait ? LOOK_TRIES : 1;
	bool is_still;

	do
		is_still = read_once(card, look, may_wait);
	while (!is_still && look->is_known && --tries);
	if (!is_still && may_wait)
		atomic_store(&restless_until_ns, timer_real_now_ns() + RESTLESS_NS);
	look->is_known = look->is_known && is_still;
	look->held = account_held(card, false);
}

/* A context says it in microseconds, NVML in milliseconds where there is none. */
void card_usage_read(int card, struct card_usage *look)
{
	uint64_t ignored;

	look->is_of_context = card_used_by_context(card, &ignored);
	read_same_way(card, look);
}

/* Who tells of a figure tells when: one that moves without that is no slice's books. */
static int64_t neighbours_change(const struct totals *before, const struct totals *after)
{
	return before->stamp == after->stamp ? 0 : (int64_t)(after->bytes - before->bytes);
}

/*
 * A neighbour that says of memory that it went makes what came look like ours, and
 * the other way round. What cannot be so is no word to go by, only the card is.
 */
int64_t card_usage_change(int card, const struct card_usage *before, int64_t least, int64_t most)
{
	struct card_usage after = {.is_of_context = before->is_of_context};

	PAUSEPOINT(card_changed);
	read_same_way(card, &after);
	if (!before->is_known || !after.is_known)
		return 0;
	int64_t change = (int64_t)(after.used - before->used);

	if (!calls_were_quiesced())
		change -= (int64_t)(after.held - before->held);
	const int64_t told = change - neighbours_change(&before->neighbours, &after.neighbours);

	return told >= least && told <= most ? told : change;
}
