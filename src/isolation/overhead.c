/*
 * Three ways to know, best first: NVML's figure for this process, less what it
 * asked for; the change of the card's total while the region's lock keeps our
 * other processes still; a table.
 */
#include "overhead.h"

#include "account.h"
#include "capture.h"
#include "cards.h"
#include "charge.h"
#include "driver.h"
#include "probe.h"
#include "slice.h"

#include <stdatomic.h>
#include <time.h>

/* A look at NVML costs what it costs; at most this part of the time is spent on it. */
enum { LOOK_PART = 20 };

/* A context of known price is looked at again after this. */
#define LOOK_LATER_NS 100000000u

static atomic_bool is_suspect;
static atomic_bool is_urgent;          /* look whatever it costs */
static _Atomic uint64_t look_again_ns; /* not before, or too much time would go into it */
static _Atomic uint64_t look_later_ns; /* then also without a suspicion; 0: no need */

/* The whole card: from NVML, or from the current context where that is on this card. */
bool overhead_card_used(int card, uint64_t *bytes)
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

/* Managed memory is the card's only while it is there: with any of it the list proves nothing. */
bool overhead_measure(int card, uint64_t *listed_bytes)
{
	uint64_t listed, sequence;

	if (charge_managed(card) || !account_is_still(&sequence) ||
	    !probe_own_listing(card, &listed) || !listed ||
	    !account_set_overhead(card, listed, sequence))
		return false;
	*listed_bytes = listed;
	return true;
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

enum sight { SEEN, UNSEEN, NO_PLACE };

/* Whether this was launched before; `mark`: and that it was, from now on. */
static enum sight look_at(const void *what, bool mark)
{
	enum { PLACES = 4096, PROBES = 8 };
	static _Atomic uintptr_t seen[PLACES];
	const uintptr_t wanted = (uintptr_t)what;
	const unsigned home = (unsigned)((wanted * 0x9E3779B97F4A7C15ull) >> 52);

	for (unsigned i = 0; i < PROBES; i++) {
		_Atomic uintptr_t *place = &seen[(home + i) % PLACES];
		uintptr_t there = atomic_load_explicit(place, memory_order_relaxed);

		if (there == wanted)
			return SEEN;
		if (!there && (!mark || atomic_compare_exchange_strong(place, &there, wanted)))
			return UNSEEN;
	}
	return NO_PLACE;
}

void overhead_saw_launch(const void *what)
{
	const enum sight sight = look_at(what, true);

	if (sight == UNSEEN)
		atomic_store(&is_urgent, true);
	else if (sight == NO_PLACE)
		/* More functions than places: then now and then must do. */
		overhead_suspect();
}

void overhead_suspect_later(void)
{
	atomic_store(&look_later_ns, now_ns() + LOOK_LATER_NS);
}

void overhead_refresh_now(int card)
{
	uint64_t ignored;

	if (!probe_knows_pid() || !overhead_has_context(card))
		return;
	const uint64_t begin_ns = now_ns();

	atomic_store(&is_urgent, false);
	atomic_store(&is_suspect, false);
	atomic_store(&look_later_ns, 0);
	if (!overhead_measure(card, &ignored))
		atomic_store(&is_suspect, true);
	const uint64_t end_ns = now_ns();

	atomic_store(&look_again_ns, end_ns + (end_ns - begin_ns) * LOOK_PART);
}

void overhead_refresh(int card)
{
	const uint64_t later_ns = atomic_load_explicit(&look_later_ns, memory_order_relaxed);
	const bool is_now = atomic_load_explicit(&is_suspect, memory_order_relaxed);

	if (atomic_load_explicit(&is_urgent, memory_order_relaxed)) {
		overhead_refresh_now(card);
		return;
	}
	if (!is_now && !later_ns)
		return;
	const uint64_t time_ns = now_ns();

	if ((is_now || time_ns >= later_ns) && time_ns >= atomic_load(&look_again_ns))
		overhead_refresh_now(card);
}

/* NVML tells us afterwards; without it the card's total must be watched from before. */
void overhead_begin_change(struct overhead_change *change, bool is_large)
{
	*change = (struct overhead_change){.card = CARD_FOREIGN, .is_large = is_large};
	if (card_current(&change->card) != CUDA_SUCCESS || change->card < 0 || probe_knows_pid())
		return;
	slice_slot();
	if (!region_lock(slice_region()))
		return;
	change->is_locked = true;
	if (!overhead_card_used(change->card, &change->before))
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

	if (slot >= 0 && overhead_card_used(change->card, &after) && after > change->before &&
	    after - change->before <= OVERHEAD_MOST_BELIEVED)
		region->cards[change->card].overhead_bytes[slot] += after - change->before;
	region_unlock(region);
}

void overhead_begin_launch(struct overhead_change *change, const void *what, CUstream stream)
{
	const enum sight sight = look_at(what, false);

	*change = (struct overhead_change){.card = CARD_FOREIGN};
	if (sight == SEEN || (!probe_knows_pid() && capture_has(stream)))
		return;
	if (sight == UNSEEN) {
		const CUstreamCaptureMode mode = capture_exempt();

		overhead_begin_change(change, false);
		capture_restore(mode);
	}
	change->what = what;
}

void overhead_end_launch(struct overhead_change *change, uint64_t counted)
{
	if (!change->what)
		return;
	if (change->is_locked) {
		const CUstreamCaptureMode mode = capture_exempt();

		if (change->before <= UINT64_MAX - counted)
			change->before += counted;
		overhead_end_change(change);
		capture_restore(mode);
	}
	/* Not before: who launches it at the same time shall watch too. */
	overhead_saw_launch(change->what);
}
