/*
 * A large allocation has its pages to itself, small ones share some; the addresses tell which. So
 * what is taken is known with the call, whether or not NVML knows this process.
 *
 * The first 2 MiB of each process's are not counted: a slice can be filled to the byte, and one odd
 * piece shows as it was asked for. So a process holds at most 2 MiB more than it is charged.
 */
#include "books/pages.h"

#include "books/memory_limit.h"
#include "books/holdings.h"
#include "slice/limits.h"

#include <stdatomic.h>

static _Atomic int64_t overhead[LIMITS_CARDS];

static uint64_t counted(int64_t bytes)
{
	return bytes > (int64_t)PAGE_BYTES ? (uint64_t)bytes - PAGE_BYTES : 0;
}

static void change(int card, int64_t bytes)
{
	if (!bytes)
		return;
	const int64_t before = atomic_fetch_add(&overhead[card], bytes);

	if (counted(before) != counted(before + bytes))
		account_adjust(card, ACCOUNT_OVERHEAD, counted(before), counted(before + bytes));
}

/*
 * A page is the card's with the first part that is asked of it, and goes with the last: how much
 * more is overhead now.
 */
static int64_t change_part(enum pages_change way, int card, uint64_t page, uint64_t part)
{
	const struct holding fresh = {
		.key = page, .kind = KIND_PAGE, .card = (int16_t)card, .bytes = part, .handles = 1};
	int64_t more = 0;

	holdings_lock();
	struct holding *entry = holdings_at(KIND_PAGE, page);

	if (way == PAGES_TAKEN && entry) {
		entry->bytes += part;
		entry->handles++;
		more = -(int64_t)part;
	} else if (way == PAGES_TAKEN) {
		more = holdings_add(&fresh) ? (int64_t)PAGE_BYTES - (int64_t)part : 0;
	} else if (entry && --entry->handles) {
		entry->bytes -= part;
		more = (int64_t)part;
	} else if (entry) {
		more = (int64_t)entry->bytes - (int64_t)PAGE_BYTES;
		holdings_remove(entry);
	}
	holdings_unlock();
	return more;
}

/* Pages that it fills hold no overhead: only the first and the last may be shared. */
void pages_placed(enum pages_change way, int card, uint64_t address, uint64_t bytes)
{
	const uint64_t end = address + bytes;
	const uint64_t first = address - address % PAGE_BYTES, last = end - end % PAGE_BYTES;
	int64_t more = 0;

	if (card < 0 || !bytes)
		return;
	if (first == last) {
		more = change_part(way, card, first, bytes);
	} else {
		if (address != first)
			more += change_part(way, card, first, first + PAGE_BYTES - address);
		if (end != last)
			more += change_part(way, card, last, end - last);
	}
	change(card, more);
}

/* Small ones share pages, and nobody tells which. */
void pages_unplaced(enum pages_change way, int card, uint64_t bytes)
{
	const int64_t more = (int64_t)(round_up(bytes, PAGE_BYTES) - bytes);

	if (card >= 0 && bytes > PAGE_BYTES / 2)
		change(card, way == PAGES_TAKEN ? more : -more);
}

uint64_t pages_overhead(int card)
{
	const int64_t bytes = atomic_load(&overhead[card]);

	return bytes > 0 ? (uint64_t)bytes : 0;
}

uint64_t pages_uncounted(int card)
{
	const uint64_t bytes = pages_overhead(card);

	return bytes - counted((int64_t)bytes);
}

void pages_after_fork(void)
{
	for (int card = 0; card < LIMITS_CARDS; card++)
		atomic_store(&overhead[card], 0);
}
