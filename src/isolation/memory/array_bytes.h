/* How many bytes an array holds; see memory/array_bytes.c. */
#pragma once

#include <stdint.h>

struct array_shape {
	unsigned format; /* CUarray_format, also of later CUDA versions */
	unsigned channels;
	unsigned flags;                /* CUDA_ARRAY3D_* */
	uint64_t width, height, depth; /* 0 height or depth: there is none */
};

/* UINT64_MAX when the product does not fit: more than any slice. */
uint64_t array_bytes(const struct array_shape *shape);

/* The sum of the levels; more levels than the size allows count as the most it allows. */
uint64_t array_mipmap_bytes(const struct array_shape *shape, unsigned levels);
