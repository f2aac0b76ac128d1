/* One picture of the slice's memory, for CUDA's calls and NVML's alike. */
#ifndef GPUSLICE_VIEW_VIEW_H
#define GPUSLICE_VIEW_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct view {
	uint64_t total, used, free; /* used + free <= total: the card itself may be fuller */
};

/* From the card's real figures. `reap`: look for dead processes first. Any thread. */
void view_of(int card, uint64_t card_free, uint64_t card_total, bool reap, struct view *view);

#endif
