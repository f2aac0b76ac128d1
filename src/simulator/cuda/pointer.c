/* What an address is. */
#include "memory.h"
#include "pool.h"

#include <string.h>

/* The simplest attributes are numbers of some width. */
static void put(void *value, size_t bytes, uint64_t number)
{
	memcpy(value, &number, bytes);
}

static bool is_hosts(const struct memory *memory)
{
	return memory->kind == MEMORY_HOST || memory->kind == MEMORY_HOST_REGISTERED ||
	       (memory->pool && !memory->pool->device);
}

static CUresult tell(const struct memory *memory, CUpointer_attribute attribute,
		     CUdeviceptr address, void *value)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		put(value, sizeof(CUcontext), (uint64_t)(uintptr_t)memory->context);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		put(value, sizeof(unsigned),
		    is_hosts(memory) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		put(value, sizeof(CUdeviceptr), address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!is_hosts(memory) && memory->kind != MEMORY_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		put(value, sizeof(void *), address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		put(value, sizeof(unsigned long long), memory->id);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		put(value, sizeof(bool), memory->kind == MEMORY_MANAGED);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		put(value, sizeof(int), memory->device ? (uint64_t)memory->device->ordinal : 0);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		put(value, sizeof(bool), memory->kind == MEMORY_DEVICE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		put(value, sizeof(CUdeviceptr), memory->address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		put(value, sizeof(size_t), memory->bytes);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		put(value, sizeof(bool), true);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		put(value, sizeof(CUmemoryPool), (uint64_t)(uintptr_t)memory->pool);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		put(value, sizeof(unsigned long long), 0);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around(address);
	if (!value || !memory)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(tell(memory, attribute, address, value));
}

/* Unlike the single question, this one answers for addresses it does not know: with zeros. */
static void tell_unknown(CUpointer_attribute attribute, void *value)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		put(value, sizeof(int), (uint64_t)-2);
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		put(value, sizeof(bool), 0);
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		put(value, sizeof(unsigned), 0);
		break;
	default:
		put(value, sizeof(uint64_t), 0);
	}
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
				CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around(address);
	if (count == 0 || !attributes || !values)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (unsigned i = 0; i < count; i++) {
		if (!memory || tell(memory, attributes[i], address, values[i]) != CUDA_SUCCESS)
			tell_unknown(attributes[i], values[i]);
	}
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
			       CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !memory_around(address))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around(address);
	if (!memory)
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	if (start)
		*start = memory->address;
	if (bytes)
		*bytes = memory->bytes;
	return driver_leave(CUDA_SUCCESS);
}

/* Managed memory stays where it is: what is asked of it is heard and changes nothing. */
static CUresult hear(CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(memory_around(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
	(void)bytes;
	(void)advice;
	(void)device;
	return hear(address);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
			CUmemLocation location)
{
	(void)bytes;
	(void)advice;
	(void)location;
	return hear(address);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
	(void)bytes;
	(void)device;
	(void)stream;
	return hear(address);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device,
				 CUstream stream)
{
	return cuMemPrefetchAsync(address, bytes, device, stream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
			       unsigned int flags, CUstream stream)
{
	(void)location;
	return flags ? CUDA_ERROR_INVALID_VALUE : cuMemPrefetchAsync(address, bytes, 0, stream);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location,
				    unsigned int flags, CUstream stream)
{
	return cuMemPrefetchAsync_v2(address, bytes, location, flags, stream);
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes,
				unsigned int flags)
{
	(void)stream;
	(void)bytes;
	return flags > CU_MEM_ATTACH_SINGLE ? CUDA_ERROR_INVALID_VALUE : hear(address);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes,
				     unsigned int flags)
{
	return cuStreamAttachMemAsync(stream, address, bytes, flags);
}
