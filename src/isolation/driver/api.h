/*
 * The headers of CUDA and NVML, taken from PyPI wheels when we build.
 *
 * The switches make them declare every version of every function under its
 * exported name (cuMemAlloc and cuMemAlloc_v2) instead of renaming by macros,
 * so each hook is checked against the real prototype. The visibility pragma
 * makes exactly the names we define from there our exports.
 */
#pragma once

#define __CUDA_API_VERSION_INTERNAL 1
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#pragma GCC visibility push(default)
#include <cuda.h>
#include <nvml.h>

#if CUDA_VERSION < 13000
/* Since CUDA 13; spelled as there, so that either header builds. */
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx);
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
					CUmemAllocationType type);
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
				 CUmemAllocationType type);
#endif
/* Not in every header since CUDA 12.8 that names some of them. */
CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
				    CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds,
				    size_t *failed, CUstream stream);
CUresult CUDAAPI cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
					 size_t count, CUmemcpyAttributes *attributes,
					 size_t *firsts, size_t kinds, size_t *failed,
					 CUstream stream);
CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
				       size_t count, CUmemcpyAttributes *attributes, size_t *firsts,
				       size_t kinds, CUstream stream);
CUresult CUDAAPI cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
					    size_t count, CUmemcpyAttributes *attributes,
					    size_t *firsts, size_t kinds, CUstream stream);
CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
				      size_t *failed, unsigned long long flags, CUstream stream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
					   size_t *failed, unsigned long long flags,
					   CUstream stream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
					 unsigned long long flags, CUstream stream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,
					      unsigned long long flags, CUstream stream);
CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
					     CUmemcpyAttributes *attributes, CUstream stream);
CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes,
						  CUmemcpyAttributes *attributes, CUstream stream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *operation,
					       unsigned long long flags, CUstream stream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *operation,
						    unsigned long long flags, CUstream stream);
/* Not in any public header; what nvidia-smi asks NVML for (view/private_table.c). */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
#pragma GCC visibility pop
