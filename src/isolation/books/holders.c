/* The slots as a list of processes. */
#include "books/holders.h"

#include "books/account.h"
#include "books/slice_region.h"
#include "slice/slice.h"

unsigned holders_of(int card, struct holder holders[REGION_SLOTS])
{
	struct region *region = slice_region();
	unsigned count = 0;

	if (card < 0 || !region_lock(region))
		return 0;
	region_reap(region);
	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		const struct region_card *books = &region->cards[card];
		const uint64_t bytes = books->used_bytes[i] + books->overhead_bytes[i];

		if (region->slots[i].state == SLOT_USED && bytes)
			holders[count++] = (struct holder){
				.pid = (uint32_t)region->slots[i].owner.pid, .bytes = bytes};
	}
	region_unlock(region);
	return count;
}
