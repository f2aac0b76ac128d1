/*
 * Memory of graphs: what allocation nodes take. A device's graphs share room
 * that is taken from the card when an executable graph is first launched (or
 * uploaded), and that stays taken until it is trimmed.
 */
#ifndef GPUSIM_GRAPH_MEMORY_H
#define GPUSIM_GRAPH_MEMORY_H

#include "memory.h"

struct graph_memory {
	uint64_t reserved_bytes;
	uint64_t reserved_high;
	uint64_t used_bytes;
	uint64_t used_high;
	uint64_t claimed_bytes; /* of reserved, by executable graphs that were launched */
	uint64_t trims;         /* each ends all claims */
};

/* What an executable graph needs of one device while it runs. */
struct graph_claim {
	uint64_t bytes;
	uint64_t trims; /* when it was claimed */
	bool is_held;
};

/* Of all, by the device's number. */
struct graph_claims {
	struct graph_claim of[DRIVER_DEVICES];
};

/* All under the process's lock. */

/* An address for an allocation node; takes nothing yet. */
CUresult graph_memory_new(struct device *device, uint64_t bytes, struct memory **memory);
/* Another node or executable that allocates it; the address goes with the last. */
void graph_memory_keep(struct memory *memory);
void graph_memory_drop(struct memory *memory);
/* GPU_SIMULATOR_GRAPH_BLOCK_BYTES: what no node takes less of; else the driver's granularity. */
uint64_t graph_memory_rounded(uint64_t bytes);

/* Before a launch: CUDA_ERROR_OUT_OF_MEMORY when a card has no room. */
CUresult graph_memory_claim(struct graph_claims *claims);
void graph_memory_unclaim(struct graph_claims *claims);
/* All of a device's ends with its primary context. */
void graph_memory_drop_all(struct device *device);

/* When an allocation or free node runs, or cuMemFreeAsync frees what a graph left. */
CUresult graph_memory_begin(struct memory *memory);
CUresult graph_memory_end(struct memory *memory);
bool graph_memory_is_live(const struct memory *memory);

#endif
