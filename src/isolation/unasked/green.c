/* Green contexts: each is a user of its card's primary context, and may cost something itself. */
#include "driver/context_scope.h"

#include "books/entry.h"
#include "books/holdings.h"
#include "driver/cards.h"
#include "unasked/overhead.h"
#include "unasked/primary.h"

static CUresult make(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device, unsigned flags,
		     CUcontext primary)
{
	/* Whatever is current, the card that is measured is this one. */
	CUcontext there = cuda.cuCtxPushCurrent_v2(primary) == CUDA_SUCCESS ? primary : NULL;
	struct overhead_context making;
	CUresult result = overhead_begin_context(&making, device, primary);

	if (result == CUDA_SUCCESS) {
		result = cuda.cuGreenCtxCreate(green, desc, device, flags);
		overhead_end_context(&making, result,
				     result == CUDA_SUCCESS ? (CUcontext)(void *)*green : NULL);
	}
	if (there)
		cuda.cuCtxPopCurrent_v2(&there);
	return result;
}

/*
 * As a process's first call this makes the primary context: then that one is
 * made first, for its known price or measured. The green one is its user, and
 * we are no longer when it is there.
 */
CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
			  unsigned int flags)
{
	struct primary_end end;
	CUcontext primary;

	ENTER(cuGreenCtxCreate, phCtx, desc, dev, flags);
	if (!cuda.cuDevicePrimaryCtxRetain || !cuda.cuDevicePrimaryCtxRelease_v2 ||
	    !cuda.cuCtxPushCurrent_v2 || !cuda.cuCtxPopCurrent_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = primary_retain(&primary, dev);

	if (result != CUDA_SUCCESS)
		return result;
	atomic_store(&green_was_made, true);
	result = make(phCtx, desc, dev, flags, primary);
	/* What was ours is the green one's now, unless there is none. */
	if (result == CUDA_SUCCESS) {
		cuda.cuDevicePrimaryCtxRelease_v2(dev);
		return result;
	}
	primary_begin_end(&end, dev, false);
	primary_end(&end, cuda.cuDevicePrimaryCtxRelease_v2(dev));
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct primary_end end;
	struct holding entry;
	CUdevice device = -1;

	ENTER(cuGreenCtxDestroy, hCtx);
	if (holdings_get(KIND_CONTEXT, (uint64_t)(uintptr_t)hCtx, &entry))
		card_device(entry.card, &device);
	primary_begin_end(&end, device, false);
	overhead_begin_forget();
	const CUresult result = cuda.cuGreenCtxDestroy(hCtx);

	overhead_end_forget(result == CUDA_SUCCESS ? (CUcontext)(void *)hCtx : NULL);
	primary_end(&end, result);
	return result;
}
