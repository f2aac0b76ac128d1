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
/* Some are in some headers. */
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			    CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds,
			    size_t *failed, CUstream stream);
CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
				 CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds,
				 size_t *failed, CUstream stream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			       CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds,
			       CUstream stream);
CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
				    CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds,
				    CUstream stream);
CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
			      unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed,
				   unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
				 unsigned long long flags, CUstream stream);
CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
				      unsigned long long flags, CUstream stream);
CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
				     CUmemcpyAttributes *attributes, CUstream stream);
CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
					  CUmemcpyAttributes *attributes, CUstream stream);
CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *operation, unsigned long long flags,
				       CUstream stream);
CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *operation,
					    unsigned long long flags, CUstream stream);
/* Of headers that come in other packages. */
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

#define GPUSIM_EXPORT __attribute__((visibility("default")))

#endif
