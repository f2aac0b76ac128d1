/*
 * The driver's own header, taken from a PyPI wheel when we build.
 *
 * The INTERNAL switch makes it declare every version of every function by its
 * real exported name (cuMemAlloc and cuMemAlloc_v2) instead of renaming by
 * macros; the visibility pragma makes exactly those names our exports.
 */
#ifndef GPUSIM_CUDA_API_H
#define GPUSIM_CUDA_API_H

#define __CUDA_API_VERSION_INTERNAL 1
#pragma GCC visibility push(default)
#include <cuda.h>

/* What CUDA 13 added to the header of 12.9. */
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context);
CUresult cuCtxSynchronize_v2(CUcontext context);
CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
				CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);
CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
			   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params);
CUresult cuFuncGetParamCount(CUfunction function, size_t *count);
CUresult cuKernelGetParamCount(CUkernel kernel, size_t *count);
/* Of headers that come in other packages. */
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

#define GPUSIM_EXPORT __attribute__((visibility("default")))

#endif
