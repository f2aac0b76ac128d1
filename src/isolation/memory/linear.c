/* cuMemAlloc, its relatives with a pitch or managed, and cuMemFree. */
#include "books/memory_charge.h"
#include "books/enter.h"

/* Threads may share all of these: the driver's own rules for the calls hold. */

ALLOCATES(pointer, bytes, charge_keep(&charge, KIND_MEMORY, *pointer, bytes, false), cuMemAlloc_v2,
	  (CUdeviceptr * pointer, size_t bytes), (pointer, bytes))
/* The interface before CUDA 3.2, with 32-bit sizes; old programs still link to it. */
ALLOCATES(pointer, bytes, charge_keep(&charge, KIND_MEMORY, *pointer, bytes, false), cuMemAlloc,
	  (CUdeviceptr_v1 * pointer, unsigned bytes), (pointer, bytes))
ALLOCATES(pointer, bytes, charge_keep(&charge, KIND_MEMORY, *pointer, bytes, true),
	  cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned flags),
	  (pointer, bytes, flags))

/* What a row is rounded up to on every card so far; what the driver says is charged in the end. */
enum { USUAL_PITCH = 512 };

static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
	uint64_t bytes;

	if (__builtin_add_overflow(width, (uint64_t)USUAL_PITCH - 1, &bytes) ||
	    __builtin_mul_overflow(bytes - bytes % USUAL_PITCH, height, &bytes))
		return UINT64_MAX;
	return bytes;
}

/*
 * The pitch is known only after the call: the usual one is reserved, and a
 * wider one must fit as well or the memory goes back.
 */
static CUresult keep_pitched(struct charge *charge, CUdeviceptr pointer, uint64_t pitch,
			     uint64_t height)
{
	const uint64_t taken = pitch * height;
	CUresult result = CUDA_SUCCESS;

	if (taken > charge->bytes)
		result = charge_more(charge, taken - charge->bytes);
	if (result == CUDA_SUCCESS) {
		charge_keep(charge, KIND_MEMORY, pointer, taken, false);
	} else {
		cuda.cuMemFree_v2(pointer);
		charge_drop(charge);
	}
	return result;
}

ALLOCATES(pointer, pitched_bytes(width, height),
	  result = keep_pitched(&charge, *pointer, *pitch, height), cuMemAllocPitch_v2,
	  (CUdeviceptr * pointer, size_t *pitch, size_t width, size_t height, unsigned element),
	  (pointer, pitch, width, height, element))
ALLOCATES(pointer, pitched_bytes(width, height),
	  result = keep_pitched(&charge, *pointer, *pitch, height), cuMemAllocPitch,
	  (CUdeviceptr_v1 * pointer, unsigned *pitch, unsigned width, unsigned height,
	   unsigned element),
	  (pointer, pitch, width, height, element))

FREES(KIND_MEMORY, pointer, cuMemFree_v2, (CUdeviceptr pointer), (pointer))
FREES(KIND_MEMORY, pointer, cuMemFree, (CUdeviceptr_v1 pointer), (pointer))
