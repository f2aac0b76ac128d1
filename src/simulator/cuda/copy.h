/*
 * Copies and fills: one shape for all of them, a box of rows.
 *
 * The bytes are moved when the call is made or the graph launched, not when
 * the stream gets there; the time is taken in the stream. A copy of more than
 * MEMORY_BACKED_BYTES moves nothing at all, so that big cards need no host
 * memory.
 */
#ifndef GPUSIM_COPY_H
#define GPUSIM_COPY_H

#include "cuda_api.h"
#include "engine.h"

#include <stdbool.h>
#include <stdint.h>

struct side {
	uint64_t address;
	uint64_t row_bytes;   /* from one row to the next */
	uint64_t plane_bytes; /* from one plane to the next */
	bool is_host;
};

struct copy {
	struct side to;
	struct side from; /* of a copy */
	bool is_fill;
	unsigned element_bytes; /* of a fill: 1, 2 or 4 */
	uint32_t value;
	uint64_t width_bytes;
	uint64_t height;
	uint64_t depth;
};

void copy_run(const struct copy *copy);
enum engine_bus copy_bus(const struct copy *copy);
/* What it takes by itself: 12 GB/s over the bus, 500 GB/s on the card, and 2 us to begin. */
uint64_t copy_ns(const struct copy *copy);

struct copy copy_linear(uint64_t to, uint64_t from, uint64_t bytes);
/* copy_shaped.c; CUDA_ERROR_INVALID_VALUE when it does not fit its arrays. */
CUresult copy_of_box(const CUDA_MEMCPY3D *box, struct copy *copy);

#endif
