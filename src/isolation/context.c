/* Contexts: made, ended, and the calls that load code or widen heaps in them. */
#include "cards.h"
#include "entry.h"
#include "meter.h"
#include "overhead.h"

/* Threads may share all of these. */

#define MAKE_CONTEXT(device, pctx, call)                                                           \
	do {                                                                                       \
		struct overhead_context making;                                                    \
		CUresult result = overhead_begin_context(&making, device);                         \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = call;                                                                     \
		overhead_end_context(&making, result, result == CUDA_SUCCESS ? *(pctx) : NULL);    \
		return result;                                                                     \
	} while (0)

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	ENTER(cuCtxCreate, pctx, flags, dev);
	MAKE_CONTEXT(dev, pctx, cuda.cuCtxCreate(pctx, flags, dev));
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	ENTER(cuCtxCreate_v2, pctx, flags, dev);
	MAKE_CONTEXT(dev, pctx, cuda.cuCtxCreate_v2(pctx, flags, dev));
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
			unsigned int flags, CUdevice dev)
{
	ENTER(cuCtxCreate_v3, pctx, paramsArray, numParams, flags, dev);
	MAKE_CONTEXT(dev, pctx, cuda.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev));
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
			CUdevice dev)
{
	ENTER(cuCtxCreate_v4, pctx, ctxCreateParams, flags, dev);
	MAKE_CONTEXT(dev, pctx, cuda.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev));
}

/* Makes the primary context where it is not there yet. */
static bool is_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;

	return cuda.cuDevicePrimaryCtxGetState &&
	       cuda.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRetain, pctx, dev);
	if (is_primary_active(dev))
		return cuda.cuDevicePrimaryCtxRetain(pctx, dev);
	MAKE_CONTEXT(dev, pctx, cuda.cuDevicePrimaryCtxRetain(pctx, dev));
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
			  unsigned int flags)
{
	struct overhead_change change;

	ENTER(cuGreenCtxCreate, phCtx, desc, dev, flags);
	overhead_begin_change(&change, true);
	const CUresult result = cuda.cuGreenCtxCreate(phCtx, desc, dev, flags);

	overhead_end_change(&change);
	return result;
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	ENTER(cuCtxDestroy_v2, ctx);
	meter_forget_context(ctx);
	const CUresult result = cuda.cuCtxDestroy_v2(ctx);

	if (result == CUDA_SUCCESS)
		overhead_forget_context(ctx);
	return result;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	ENTER(cuCtxDestroy, ctx);
	meter_forget_context(ctx);
	const CUresult result = cuda.cuCtxDestroy(ctx);

	if (result == CUDA_SUCCESS)
		overhead_forget_context(ctx);
	return result;
}

/* One of its users less: the last one's call ends it, and then it is no longer current here. */
CUresult cuCtxDetach(CUcontext ctx)
{
	CUcontext current = NULL;

	ENTER(cuCtxDetach, ctx);
	meter_forget_context(ctx);
	const CUresult result = cuda.cuCtxDetach(ctx);

	if (result == CUDA_SUCCESS &&
	    (cuda.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != ctx))
		overhead_forget_context(ctx);
	return result;
}

/* The primary context's handle; NULL when it is not active. Retaining does not make it anew. */
static CUcontext primary_of(CUdevice device)
{
	CUcontext context = NULL;

	if (!is_primary_active(device) || !cuda.cuDevicePrimaryCtxRetain ||
	    cuda.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return NULL;
	if (cuda.cuDevicePrimaryCtxRelease_v2)
		cuda.cuDevicePrimaryCtxRelease_v2(device);
	else if (cuda.cuDevicePrimaryCtxRelease)
		cuda.cuDevicePrimaryCtxRelease(device);
	return context;
}

#define END_PRIMARY(device, call)                                                                  \
	do {                                                                                       \
		const CUcontext primary = primary_of(device);                                      \
                                                                                                   \
		meter_forget_context(primary);                                                     \
		const CUresult result = call;                                                      \
                                                                                                   \
		if (result == CUDA_SUCCESS && !is_primary_active(device))                          \
			overhead_forget_context(primary);                                          \
		return result;                                                                     \
	} while (0)

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRelease, dev);
	END_PRIMARY(dev, cuda.cuDevicePrimaryCtxRelease(dev));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRelease_v2, dev);
	END_PRIMARY(dev, cuda.cuDevicePrimaryCtxRelease_v2(dev));
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxReset, dev);
	END_PRIMARY(dev, cuda.cuDevicePrimaryCtxReset(dev));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxReset_v2, dev);
	END_PRIMARY(dev, cuda.cuDevicePrimaryCtxReset_v2(dev));
}
