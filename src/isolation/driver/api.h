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
/* Not in any public header; what nvidia-smi asks NVML for (view/private_table.c). */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
#pragma GCC visibility pop
