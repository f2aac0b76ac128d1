/*
 * The smallest driver that a slice can be guarded on, and a little of the
 * future: an allocation function that nobody knows yet, and a cuGetProcAddress
 * that gives out other addresses than dlsym does. libpast.c is the same without
 * a function that is needed; libnewer.c gives out what dlsym finds, and has a
 * newer version of an old function.
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <string.h>

static CUcontext context = (CUcontext)0x1000;

CUresult cuInit(unsigned int flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	memset(uuid, 0, sizeof(*uuid));
	uuid->bytes[15] = (char)(device + 1);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *made, CUdevice device)
{
	(void)device;
	*made = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext wanted)
{
	return wanted == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetCurrent(CUcontext *current)
{
	*current = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	static CUdeviceptr next = 1 << 20;

	*pointer = next;
	next += bytes;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	(void)pointer;
	return CUDA_SUCCESS;
}

#ifndef PAST
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = *total_bytes = 1ull << 34;
	return CUDA_SUCCESS;
}
#endif

/* Of CUDA 20. */
CUresult cuMemAllocEntangled(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemAllocEntangled(CUdeviceptr *pointer, size_t bytes)
{
	return cuMemAlloc_v2(pointer, bytes);
}

/* And what changes the books otherwise: made, loaded, freed, waited for. */
#define NEW(name)                                                                                  \
	CUresult name(void);                                                                       \
	CUresult name(void)                                                                        \
	{                                                                                          \
		return CUDA_SUCCESS;                                                               \
	}
NEW(cuCtxCreate_v5)
NEW(cuModuleLoadRemote)
NEW(cuMemFreeEntangled)
NEW(cuStreamSynchronize_v2)
CUresult cuMemFreeHost(void *pointer)
{
	return pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

NEW(cuStreamGetPriority_v2)

#ifdef NEWER
/* Of CUDA 20 too. */
CUresult cuMemAlloc_v9(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemAlloc_v9(CUdeviceptr *pointer, size_t bytes)
{
	return cuMemAlloc_v2(pointer, bytes);
}

/* The exports themselves, where the loader would put the names of a library before us. */
static __typeof__(cuInit) own_init __attribute__((alias("cuInit")));
static __typeof__(cuMemAlloc_v2) own_alloc __attribute__((alias("cuMemAlloc_v2")));

static void *address_of(const char *symbol, int version)
{
	if (!strcmp(symbol, "cuInit"))
		return (void *)own_init;
	if (!strcmp(symbol, "cuMemAlloc"))
		return version >= 20000 ? (void *)cuMemAlloc_v9 : (void *)own_alloc;
	return NULL;
}
#else
/* The same code at another address, as a driver with internal entry points has it. */
static CUresult inner_alloc(CUdeviceptr *pointer, size_t bytes)
{
	return cuMemAlloc_v2(pointer, bytes);
}

static CUresult inner_init(unsigned int flags)
{
	return cuInit(flags);
}

static void *address_of(const char *symbol, int version)
{
	if (!strcmp(symbol, "cuInit"))
		return (void *)inner_init;
	if (!strcmp(symbol, "cuMemAlloc") && version >= 3020)
		return (void *)inner_alloc;
	if (!strcmp(symbol, "cuMemAllocEntangled") && version >= 20000)
		return (void *)cuMemAllocEntangled;
	return NULL;
}
#endif

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *symbolStatus)
{
	(void)flags;
	*pfn = address_of(symbol, cudaVersion);
	if (symbolStatus)
		*symbolStatus =
			*pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
