/*
 * Calls that may put code or heaps on the card. Nobody knows before how much,
 * so it is measured after, and until the slice has room again for the next
 * allocation that is refused.
 *
 * What the change of a card's total tells is counted by context, so that it goes with it, and so
 * that what an unload gives back is taken off again, which can be no more than was counted.
 */
#include "books/account.h"
#include "books/calls.h"
#include "books/entry.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
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
	const int64_t most = code_to_come(card) + (int64_t)counted;

	add(card, card_usage_change(card, before, 0, most) - (int64_t)counted);
}

static void take_change(int card, const struct card_usage *before)
{
	const int64_t change = card_usage_change(card, before, -(int64_t)code_on(card), 0);

	if (change < 0)
		account_adjust(card, ACCOUNT_OVERHEAD, drop_code(card, (uint64_t)-change), 0);
	else
		add(card, change);
}

/* Without NVML code is only known to be where some was counted. */
static uint32_t cards_to_unload_from(void)
{
	uint32_t cards = 0;

	for (int card = 0; card < LIMITS_CARDS; card++)
		if (overhead_has_context(card) && (nvml_knows_pid() || code_on(card)))
			cards |= 1u << card;
	return cards;
}

/* NVML tells us afterwards; without it the cards' totals are read before and after. */
void overhead_begin_change(struct overhead_change *change, bool unloads)
{
	int current;

	change->unloads = unloads;
	change->cards = unloads ? cards_to_unload_from() : 0;
	if (!unloads)
		overhead_adopt_current();
	if (card_current(&current) == CUDA_SUCCESS && current >= 0)
		change->cards |= 1u << current;
	change->is_quiesced = change->cards && !nvml_knows_pid() && calls_quiesce_others();
	if (!change->is_quiesced)
		return;
	for (int card = 0; card < LIMITS_CARDS; card++)
		if (change->cards >> card & 1)
			card_usage_read(card, &change->before[card]);
	driver_go_inside();
}

/* On one card. */
static void end_change(const struct overhead_change *change, int card, bool is_large)
{
	if (change->is_quiesced && change->unloads) {
		take_change(card, &change->before[card]);
	} else if (change->is_quiesced) {
		overhead_add_change(card, &change->before[card], 0);
	} else {
		if (is_large)
			overhead_stale_urgently(1u << card);
		else
			overhead_stale(card);
		overhead_refresh(card, 0);
	}
}

void overhead_end_change(const struct overhead_change *change, bool is_large)
{
	if (change->is_quiesced)
		driver_come_back();
	for (int card = 0; card < LIMITS_CARDS; card++)
		if (change->cards >> card & 1)
			end_change(change, card, is_large);
	if (change->is_quiesced)
		calls_resume_others();
}

/* Addresses leave the highest bits free. */
#define ASKED (1ull << 62)

/* Threads may share all of these. */

#define MAY_CHANGE(is_large, name, parameters, arguments)                                          \
	HOOK(name, parameters, arguments, struct overhead_change change;                           \
	     overhead_begin_change(&change, false), overhead_end_change(&change, is_large))

#define LOADS(image_bytes, handle, home, name, parameters, arguments)                              \
	HOOK(name, parameters, arguments, struct overhead_change change;                           \
	     overhead_begin_change(&change, false),                                                \
	     if (result == CUDA_SUCCESS && (handle)) images_loaded(*(handle), image_bytes, home);  \
	     overhead_end_change(&change, true))
/* With lazy loading the code comes when a function is first asked for. */
#define MAY_LOAD(name, parameters, arguments) MAY_CHANGE(false, name, parameters, arguments)

#define UNLOADS(name, parameters, handle)                                                          \
	HOOK(name, parameters, (handle), overhead_forget_launches();                               \
	     struct overhead_change change; overhead_begin_change(&change, true),                  \
					    if (result == CUDA_SUCCESS) images_unloaded(handle);   \
	     overhead_end_change(&change, true))

/*
 * The first question about a function may bring its code; the first launch is
 * looked at all the same, for what else that brings.
 */
#define ASKS(function, name, parameters, arguments)                                                \
	HOOK(name, parameters, arguments,                                                          \
	     const void *asked = (const void *)((uintptr_t)(function) ^ ASKED);                    \
	     struct overhead_launch first; overhead_begin_launch(&first, asked, NULL),             \
					   overhead_end_launch(&first, asked, NULL, result, 0))

LOADS(image_file_bytes(fname), module, context_current(), cuModuleLoad,
      (CUmodule * module, const char *fname), (module, fname))
LOADS(image_bytes(image), module, context_current(), cuModuleLoadData,
      (CUmodule * module, const void *image), (module, image))
LOADS(image_bytes(image), module, context_current(), cuModuleLoadDataEx,
      (CUmodule * module, const void *image, unsigned count, CUjit_option *options, void **values),
      (module, image, count, options, values))
LOADS(image_bytes(image), module, context_current(), cuModuleLoadFatBinary,
      (CUmodule * module, const void *image), (module, image))
LOADS(image_bytes(code), library, NULL, cuLibraryLoadData,
      (CUlibrary * library, const void *code, CUjit_option *options, void **values, unsigned count,
       CUlibraryOption *library_options, void **library_values, unsigned library_count),
      (library, code, options, values, count, library_options, library_values, library_count))
LOADS(image_file_bytes(fname), library, NULL, cuLibraryLoadFromFile,
      (CUlibrary * library, const char *fname, CUjit_option *options, void **values, unsigned count,
       CUlibraryOption *library_options, void **library_values, unsigned library_count),
      (library, fname, options, values, count, library_options, library_values, library_count))
MAY_CHANGE(true, cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library))

MAY_LOAD(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
	 (function, module, name))
MAY_LOAD(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel))
MAY_LOAD(cuFuncLoad, (CUfunction function), (function))

UNLOADS(cuModuleUnload, (CUmodule module), module)
UNLOADS(cuLibraryUnload, (CUlibrary library), library)
/* Stack, printf and malloc heaps. */
HOOK(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value), struct overhead_change change;
     overhead_begin_change(&change, true), overhead_end_change(&change, true))

ASKS(function, cuFuncGetAttribute, (int *value, CUfunction_attribute which, CUfunction function),
     (value, which, function))
ASKS(function, cuFuncSetAttribute, (CUfunction function, CUfunction_attribute which, int value),
     (function, which, value))
ASKS(kernel, cuKernelGetAttribute,
     (int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device),
     (value, which, kernel, device))
ASKS(kernel, cuKernelSetAttribute,
     (CUfunction_attribute which, int value, CUkernel kernel, CUdevice device),
     (which, value, kernel, device))
ASKS(function, cuOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *blocks, CUfunction function, int block_size, size_t shared_bytes),
     (blocks, function, block_size, shared_bytes))
ASKS(function, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *blocks, CUfunction function, int block_size, size_t shared_bytes, unsigned flags),
     (blocks, function, block_size, shared_bytes, flags))
ASKS(function, cuOccupancyMaxPotentialBlockSize,
     (int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_of_block,
      size_t shared_bytes, int limit),
     (grid_size, block_size, function, shared_of_block, shared_bytes, limit))
ASKS(function, cuOccupancyMaxPotentialBlockSizeWithFlags,
     (int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_of_block,
      size_t shared_bytes, int limit, unsigned flags),
     (grid_size, block_size, function, shared_of_block, shared_bytes, limit, flags))
