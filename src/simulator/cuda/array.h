/* Arrays: memory with a shape, which programs reach through textures and copies. */
#ifndef GPUSIM_ARRAY_H
#define GPUSIM_ARRAY_H

#include "memory.h"

enum { ARRAY_MAGIC = 0x41525230, MIPMAP_MAGIC = 0x4d495030 };

struct array {
	uint32_t magic;
	bool is_level; /* of a mipmapped array, which owns the memory */
	CUDA_ARRAY3D_DESCRIPTOR shape;
	uint64_t bytes;
	struct memory *memory;
};

/* Both under the process's lock. */
struct array *array_of(CUarray handle);
/* The bytes of one element; 0 for a format that is none. */
unsigned array_element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* All of it, heights and depths of 0 counting as 1. */
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape);

#endif
