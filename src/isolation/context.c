/* Contexts of a program's own: made and ended. */
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
