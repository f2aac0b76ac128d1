/* One picture of the slice's memory, for CUDA's calls and NVML's alike. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct view {
	uint64_t total, used, free; /* used + free <= total: the card itself may be fuller */
};

/* From the card's real figures. `reap`: look for dead processes first. Any thread. */
void view_of(int card, uint64_t card_free, uint64_t card_total, bool reap, struct view *view);
