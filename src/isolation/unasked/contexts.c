/* Contexts of a program's own: made and ended. */
#include "books/entry.h"
#include "compute/meter.h"
#include "driver/cards.h"
#include "unasked/overhead.h"

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

#define END_CONTEXT(context, call, has_ended)                                                      \
	do {                                                                                       \
		meter_forget_context(context);                                                     \
		overhead_begin_forget();                                                           \
		const CUresult result = call;                                                      \
                                                                                                   \
		overhead_end_forget(result == CUDA_SUCCESS && (has_ended) ? (context) : NULL);     \
		return result;                                                                     \
	} while (0)

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	ENTER(cuCtxDestroy_v2, ctx);
	END_CONTEXT(ctx, cuda.cuCtxDestroy_v2(ctx), true);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	ENTER(cuCtxDestroy, ctx);
	END_CONTEXT(ctx, cuda.cuCtxDestroy(ctx), true);
}

/* One of its users less: the last one's call ends it, and then it is no longer current here. */
CUresult cuCtxDetach(CUcontext ctx)
{
	ENTER(cuCtxDetach, ctx);
	END_CONTEXT(ctx, cuda.cuCtxDetach(ctx), context_current() != ctx);
}
