/* The steps every allocation shares. All functions may be called from any thread. */
#include "books/memory_charge.h"

#include "books/pages.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "slice/killpoint.h"
#include "slice/limits.h"

#include <stdatomic.h>

enum { TAG_MANAGED = 1 };

static _Atomic uint64_t managed_bytes[LIMITS_CARDS];
static atomic_bool is_any_managed; /* from a pool, of unknown size */

CUresult charge_card(struct charge *charge, int card, uint64_t bytes)
{
	*charge = (struct charge){.card = card, .bytes = bytes};
	return account_reserve(card, ACCOUNT_USED, bytes);
}

CUresult charge_current(struct charge *charge, uint64_t bytes)
{
	int card;
	const CUresult result = card_current(&card);

	return result == CUDA_SUCCESS ? charge_card(charge, card, bytes) : result;
}

CUresult charge_more(struct charge *charge, uint64_t bytes)
{
	const CUresult result = account_reserve(charge->card, ACCOUNT_USED, bytes);

	if (result == CUDA_SUCCESS) {
		/* Two reservations, one call, which settles both. */
		if (bytes && charge->bytes)
			calls_end();
		charge->bytes += bytes;
	}
	return result;
}

/* Physical memory and pools are made of whole pages, managed memory comes and goes. */
static void change_pages(const struct holding *entry, enum pages_change change)
{
	if (entry->kind == KIND_MEMORY && entry->tag != TAG_MANAGED)
		pages_placed(change, entry->card, entry->key, entry->bytes);
	else if (entry->kind == KIND_ARRAY || entry->kind == KIND_MIPMAP)
		pages_unplaced(change, entry->card, entry->bytes);
}

void charge_keep(struct charge *charge, enum holding_kind kind, uint64_t key, uint64_t taken,
		 bool is_managed)
{
	/* Physical memory and pools outlive contexts; the rest goes with its own. */
	const bool is_contexts = kind == KIND_MEMORY || kind == KIND_ARRAY || kind == KIND_MIPMAP;
	const struct holding entry = {
		.key = key,
		.kind = (uint16_t)kind,
		.card = (int16_t)charge->card,
		.bytes = taken,
		.context = is_contexts ? (uint64_t)(uintptr_t)context_current() : 0,
		.tag = is_managed ? TAG_MANAGED : 0,
		.handles = 1,
	};

	if (is_managed && charge->card >= 0)
		atomic_fetch_add(&managed_bytes[charge->card], taken);
	KILLPOINT(keep_before_settle);
	change_pages(&entry, PAGES_TAKEN);
	account_settle(charge->card, ACCOUNT_USED, charge->bytes, taken);
	KILLPOINT(keep_after_settle);
	holdings_put(&entry);
	charge->bytes = 0;
}

void charge_drop(struct charge *charge)
{
	account_settle(charge->card, ACCOUNT_USED, charge->bytes, 0);
	charge->bytes = 0;
}

uint64_t charge_managed(int card)
{
	return atomic_load(&is_any_managed) ? UINT64_MAX : atomic_load(&managed_bytes[card]);
}

void charge_expect_managed(void)
{
	atomic_store(&is_any_managed, true);
}

void charge_after_fork(void)
{
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		atomic_store(&managed_bytes[i], 0);
	atomic_store(&is_any_managed, false);
	pages_after_fork();
}

static void release(const struct holding *entry)
{
	if (entry->tag == TAG_MANAGED && entry->card >= 0)
		atomic_fetch_sub(&managed_bytes[entry->card], entry->bytes);
	change_pages(entry, PAGES_GIVEN);
	account_adjust(entry->card, ACCOUNT_USED, entry->bytes, 0);
	calls_end();
}

void charge_take(struct charge_taken *taken, enum holding_kind kind, uint64_t key)
{
	taken->entry.kind = KIND_NONE;
	if (key && holdings_take(kind, key, &taken->entry))
		calls_begin();
}

void charge_taken_done(struct charge_taken *taken, bool is_freed)
{
	if (taken->entry.kind == KIND_NONE)
		return;
	KILLPOINT(free_before_release);
	if (is_freed) {
		release(&taken->entry);
	} else {
		holdings_put(&taken->entry);
		calls_end();
	}
}

/* NVML may list it or not, as managed memory. */
void charge_taken_stays(const struct charge_taken *taken)
{
	atomic_fetch_add(&managed_bytes[taken->entry.card], taken->entry.bytes);
	calls_end();
}

static void forget(const struct holding *entry)
{
	calls_begin();
	release(entry);
}

void charge_forget_context(CUcontext context)
{
	static const enum holding_kind kinds[] = {KIND_MEMORY, KIND_ARRAY, KIND_MIPMAP};

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		holdings_forget(kinds[i], (uint64_t)(uintptr_t)context, forget);
}
