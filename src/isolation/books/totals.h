/*
 * What slices hold of a card, told to each other on their pages of activity: so
 * that memory of a neighbour is not taken for our own. See books/totals.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Under the region's lock, when the books of a card have changed. */
void totals_publish(int card);
/* A call that takes or gives memory begins, or has come back and is in the books. */
void totals_tell_calls(uint32_t calls_out);

struct totals {
	uint64_t bytes; /* that the slices beside us hold of a card */
	uint64_t stamp; /* another one when any of them has begun a call or come back */
	bool is_still;  /* none has one out */
};

/* Not under the region's lock; `may_wait`: a little, for those that have a call out. */
struct totals totals_of_neighbours(int card, bool may_wait);
