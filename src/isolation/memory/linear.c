/* cuMemAlloc, its relatives with a pitch or managed, and cuMemFree. */
#include "books/account.h"
#include "books/charge.h"
#include "books/entry.h"
#include "books/holdings.h"
#include "driver/cards.h"
#include "memory/pools.h"

#include <limits.h>

/* Threads may share all of these: the driver's own rules for the calls hold. */

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	struct charge charge;

	ENTER_TO_GIVE(dptr, cuMemAlloc_v2, dptr, bytesize);
	CUresult result = charge_current(&charge, bytesize);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMemAlloc_v2(dptr, bytesize);
	if (result == CUDA_SUCCESS)
		charge_keep(&charge, KIND_MEMORY, *dptr, bytesize);
	else
		charge_drop(&charge);
	return result;
}

/* The interface before CUDA 3.2, with 32-bit sizes; old programs still link to it. */
CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
	struct charge charge;

	ENTER_TO_GIVE(dptr, cuMemAlloc, dptr, bytesize);
	CUresult result = charge_current(&charge, bytesize);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMemAlloc(dptr, bytesize);
	if (result == CUDA_SUCCESS)
		charge_keep(&charge, KIND_MEMORY, *dptr, bytesize);
	else
		charge_drop(&charge);
	return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	struct charge charge;

	ENTER_TO_GIVE(dptr, cuMemAllocManaged, dptr, bytesize, flags);
	CUresult result = charge_current(&charge, bytesize);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMemAllocManaged(dptr, bytesize, flags);
	if (result == CUDA_SUCCESS)
		charge_keep_managed(&charge, *dptr, bytesize);
	else
		charge_drop(&charge);
	return result;
}

/* What a row is rounded up to on every card so far; what the driver says is charged in the end. */
enum { USUAL_PITCH = 512 };

static bool pitched_bytes(size_t width, size_t height, uint64_t *bytes)
{
	uint64_t row;

	if (__builtin_add_overflow(width, (uint64_t)USUAL_PITCH - 1, &row))
		return false;
	row -= row % USUAL_PITCH;
	return !__builtin_mul_overflow(row, (uint64_t)height, bytes);
}

/*
 * The pitch is known only after the call: the usual one is reserved, and a
 * wider one must fit as well or the memory goes back.
 */
static CUresult keep_pitched(struct charge *charge, CUdeviceptr pointer, uint64_t taken)
{
	CUresult result = CUDA_SUCCESS;

	if (taken > charge->bytes)
		result = charge_more(charge, taken - charge->bytes);
	if (result == CUDA_SUCCESS) {
		charge_keep(charge, KIND_MEMORY, pointer, taken);
	} else {
		cuda.cuMemFree_v2(pointer);
		charge_drop(charge);
	}
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
			    unsigned int ElementSizeBytes)
{
	struct charge charge;
	uint64_t bytes;

	ENTER_TO_GIVE(dptr, cuMemAllocPitch_v2, dptr, pPitch, WidthInBytes, Height,
		      ElementSizeBytes);
	if (!pitched_bytes(WidthInBytes, Height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = charge_current(&charge, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	if (result == CUDA_SUCCESS)
		return keep_pitched(&charge, *dptr, (uint64_t)*pPitch * Height);
	charge_drop(&charge);
	return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
			 unsigned int Height, unsigned int ElementSizeBytes)
{
	struct charge charge;
	uint64_t bytes;

	ENTER_TO_GIVE(dptr, cuMemAllocPitch, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	if (!pitched_bytes(WidthInBytes, Height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = charge_current(&charge, bytes);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	if (result == CUDA_SUCCESS)
		return keep_pitched(&charge, *dptr, (uint64_t)*pPitch * Height);
	charge_drop(&charge);
	return result;
}

/*
 * The entry goes first: as soon as the driver has the pointer back it may give
 * it to another thread. Pointers we do not know are the driver's business.
 */
CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct charge_taken taken;

	ENTER(cuMemFree_v2, dptr);
	charge_take(&taken, KIND_MEMORY, dptr);
	const CUresult result = cuda.cuMemFree_v2(dptr);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	struct charge_taken taken;

	ENTER(cuMemFree, dptr);
	charge_take(&taken, KIND_MEMORY, dptr);
	const CUresult result = cuda.cuMemFree(dptr);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}
