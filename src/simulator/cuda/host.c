/* Pinned host memory: the program's own, so it takes nothing on the card. */
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

static uint64_t whole_pages(uint64_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

static CUresult allocate(void **address, size_t bytes, unsigned flags)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || bytes == 0 || flags > 7)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	struct memory *memory = calloc(1, sizeof(*memory));
	if (!memory)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	void *pages = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	memory->address = (uint64_t)(uintptr_t)pages;
	memory->bytes = bytes;
	memory->kind = MEMORY_HOST;
	memory->flags = flags;
	memory->device = context->device;
	if (pages == MAP_FAILED || !memory_insert(memory)) {
		free(memory);
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*address = pages;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAllocHost(void **address, unsigned int bytes)
{
	return allocate(address, bytes, 0);
}

CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
	return allocate(address, bytes, 0);
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
	return allocate(address, bytes, flags);
}

CUresult cuMemFreeHost(void *address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct memory *memory = memory_at((uint64_t)(uintptr_t)address);
	if (!memory || memory->kind != MEMORY_HOST)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memory_remove(memory);
	munmap(address, whole_pages(memory->bytes));
	free(memory);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult register_range(void *address, size_t bytes, unsigned flags)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || bytes == 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (memory_around((uint64_t)(uintptr_t)address))
		return driver_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	struct memory *memory = calloc(1, sizeof(*memory));
	if (!memory)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memory->address = (uint64_t)(uintptr_t)address;
	memory->bytes = bytes;
	memory->kind = MEMORY_HOST_REGISTERED;
	memory->flags = flags;
	memory->device = context->device;
	memory_insert(memory);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned int flags)
{
	return register_range(address, bytes, flags);
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
	return register_range(address, bytes, flags);
}

CUresult cuMemHostUnregister(void *address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct memory *memory = memory_at((uint64_t)(uintptr_t)address);
	if (!memory || memory->kind != MEMORY_HOST_REGISTERED)
		return driver_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	memory_remove(memory);
	free(memory);
	return driver_leave(CUDA_SUCCESS);
}

static const struct memory *host_memory(const void *address)
{
	const struct memory *memory = memory_around((uint64_t)(uintptr_t)address);

	return memory && (memory->kind == MEMORY_HOST || memory->kind == MEMORY_HOST_REGISTERED)
		       ? memory
		       : NULL;
}

/* One address space: the device sees host memory where the program does. */
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned int flags)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || flags || !host_memory(host))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*address = (CUdeviceptr)(uintptr_t)host;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *host)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = host_memory(host);
	if (!flags || !memory)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = memory->flags;
	return driver_leave(CUDA_SUCCESS);
}
