/*
 * Code and heaps that were counted by the change of a card's total: by context, so that they
 * go with it, and so that what an unload gives back is taken off again, which
 * can be no more than was counted.
 */
#include "books/account.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/driver.h"
#include "unasked/images.h"
#include "unasked/overhead.h"

/* Bytes of code on a card; of all its contexts together. */
static uint64_t code_on(int card)
{
	const struct holding *entry;
	uint64_t bytes = 0;
	uint32_t place = 0;

	holdings_lock();
	while ((entry = holdings_next(KIND_CONTEXT, &place)))
		if (entry->card == card)
			bytes += entry->other;
	holdings_unlock();
	return bytes;
}

static uint32_t cards_with_code(void)
{
	uint32_t cards = 0;

	for (int card = 0; card < LIMITS_CARDS; card++)
		if (overhead_has_context(card) && code_on(card))
			cards |= 1u << card;
	return cards;
}

/* With the table's lock. */
static uint64_t drop_from(struct holding *entry, int card, uint64_t bytes)
{
	if (!entry || entry->card != card)
		return 0;
	const uint64_t dropped = entry->other < bytes ? entry->other : bytes;

	entry->other -= dropped;
	return dropped;
}

/* The current context's first: modules are unloaded where they were loaded. Returns how much. */
static uint64_t drop_code(int card, uint64_t bytes)
{
	const uint64_t current = (uint64_t)(uintptr_t)context_current();
	struct holding *entry;
	uint32_t place = 0;

	holdings_lock();
	uint64_t dropped = drop_from(holdings_at(KIND_CONTEXT, current), card, bytes);

	while (dropped < bytes && (entry = holdings_next(KIND_CONTEXT, &place)))
		dropped += drop_from(entry, card, bytes - dropped);
	holdings_unlock();
	return dropped;
}

static void keep_code(uint64_t bytes)
{
	holdings_lock();
	struct holding *entry = holdings_at(KIND_CONTEXT, (uint64_t)(uintptr_t)context_current());

	if (entry)
		entry->other += bytes;
	holdings_unlock();
}

static void add(int card, int64_t bytes)
{
	if (bytes <= 0 || bytes > (int64_t)OVERHEAD_MOST_BELIEVED)
		return;
	account_adjust(card, ACCOUNT_OVERHEAD, 0, (uint64_t)bytes);
	keep_code((uint64_t)bytes);
}

/* The most that loaded images can still bring, since most of their code may be there. */
static int64_t code_to_come(int card)
{
	const uint64_t most = images_most_code(), there = code_on(card);

	return most > there ? (int64_t)(most - there) : 0;
}

void overhead_add_change(int card, const struct card_usage *before, uint64_t counted)
{
	const struct card_change change = card_usage_change(card, before);

	add(card, card_change_of_ours(change, 0, code_to_come(card) + (int64_t)counted) -
			  (int64_t)counted);
}

static void take_change(int card, const struct card_usage *before)
{
	const int64_t change =
		card_change_of_ours(card_usage_change(card, before), -(int64_t)code_on(card), 0);

	if (change < 0)
		account_adjust(card, ACCOUNT_OVERHEAD, drop_code(card, (uint64_t)-change), 0);
	else
		add(card, change);
}

void overhead_begin_unload(struct overhead_unload *unload)
{
	int card;

	unload->cards = 0;
	if (nvml_knows_pid())
		return;
	unload->cards = cards_with_code();
	if (card_current(&card) == CUDA_SUCCESS && card >= 0)
		unload->cards |= 1u << card;
	if (!unload->cards)
		return;
	if (!overhead_quiesce()) {
		unload->cards = 0;
		return;
	}
	for (card = 0; card < LIMITS_CARDS; card++)
		if (unload->cards >> card & 1)
			card_usage_read(card, &unload->before[card]);
	driver_go_inside();
}

void overhead_end_unload(const struct overhead_unload *unload)
{
	if (!unload->cards) {
		for (int card = 0; card < LIMITS_CARDS; card++)
			if (overhead_has_context(card)) {
				overhead_stale_urgently(card);
				overhead_refresh(card, 0);
			}
		return;
	}
	driver_come_back();
	for (int card = 0; card < LIMITS_CARDS; card++)
		if (unload->cards >> card & 1)
			take_change(card, &unload->before[card]);
	overhead_resume();
}
