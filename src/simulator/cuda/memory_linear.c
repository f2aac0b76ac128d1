/* cuMemAlloc and its kin, cuMemFree, cuMemGetInfo. */
#include "capture.h"
#include "import.h"
#include "ledger.h"

static CUresult allocate(CUdeviceptr *address, size_t bytes, enum memory_kind kind, unsigned flags)
{
	struct context *context;
	struct memory *memory;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || bytes == 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = capture_refuse_unsafe();
	if (result == CUDA_SUCCESS)
		result = memory_allocate(context, bytes, kind, &memory);
	if (result == CUDA_SUCCESS) {
		memory->flags = flags;
		*address = memory->address;
	}
	return driver_leave(result);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	return allocate(address, bytes, MEMORY_DEVICE, 0);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(address, bytes, MEMORY_MANAGED, flags);
}

/* Rows begin at multiples of 512 bytes, as on every card since Kepler. */
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
			    unsigned int element_bytes)
{
	size_t row = (width + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
	CUresult result;

	if (!pitch || width == 0 || height == 0 || row < width || height > SIZE_MAX / row)
		return CUDA_ERROR_INVALID_VALUE;
	if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(address, row * height, MEMORY_DEVICE, 0);
	if (result == CUDA_SUCCESS)
		*pitch = row;
	return result;
}

/* The first ABI: 32-bit addresses and sizes, of which a 64-bit program cannot have any. */
CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes)
{
	(void)address;
	(void)bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (address == 0)
		return driver_leave(CUDA_SUCCESS);
	result = capture_refuse_unsafe();
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	struct memory *memory = memory_at(address);
	if (!memory || memory->kind == MEMORY_HOST || memory->kind == MEMORY_HOST_REGISTERED ||
	    memory->kind == MEMORY_MAPPED || memory->kind == MEMORY_IMPORTED)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (memory->kind == MEMORY_POOL_IMPORTED)
		return driver_leave(import_drop(memory));
	/* As with the real driver: what was queued before may still use it. */
	if (memory->context)
		context_wait(memory->context);
	return driver_leave(memory->kind == MEMORY_GRAPH ? graph_memory_end(memory)
							 : memory_release(memory));
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!free_bytes || !total_bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	uint64_t total;
	*free_bytes = ledger_free_bytes(context->device, &total);
	*total_bytes = total;
	return driver_leave(CUDA_SUCCESS);
}
