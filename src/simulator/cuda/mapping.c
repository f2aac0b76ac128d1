/* Address ranges of the program's own choosing, and what is mapped there. */
#include "memory.h"
#include "physical.h"

#include <stdlib.h>
#include <sys/mman.h>

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
			     unsigned long long flags)
{
	size_t slack = alignment > physical_granularity() ? alignment : physical_granularity();
	CUresult result = driver_enter_bare();

	(void)hint;
	if (result != CUDA_SUCCESS)
		return result;
	if (!address || flags || bytes == 0 || bytes % physical_granularity() ||
	    slack & (slack - 1))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	char *range = mmap(NULL, bytes + slack, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (range == MAP_FAILED)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	size_t before = (slack - (uintptr_t)range % slack) % slack;
	if (before)
		munmap(range, before);
	munmap(range + before + bytes, slack - before);
	*address = (CUdeviceptr)(uintptr_t)(range + before);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!address || memory_around(address))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	munmap((void *)(uintptr_t)address, bytes);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct physical *physical = physical_of(handle);
	if (!physical || flags || offset || bytes != physical->bytes || memory_around(address) ||
	    address % physical_granularity())
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	struct memory *memory = calloc(1, sizeof(*memory));
	if (!memory)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memory->address = address;
	memory->bytes = bytes;
	memory->kind = MEMORY_MAPPED;
	memory->device = physical->device;
	memory->physical = physical;
	if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
		 physical_file(physical), (off_t)physical->offset) == MAP_FAILED ||
	    !memory_insert(memory)) {
		free(memory);
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	physical->mappings++;
	return driver_leave(CUDA_SUCCESS);
}

/* Whole mappings only; the range may hold several. */
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	CUdeviceptr end = address + bytes;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (bytes == 0 || !memory_at(address))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	while (address < end) {
		struct memory *memory = memory_at(address);

		if (!memory || !memory->physical || memory->bytes > end - address)
			return driver_leave(CUDA_ERROR_INVALID_VALUE);
		(void)mmap((void *)(uintptr_t)address, memory->bytes, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		address += memory->bytes;
		memory->physical->mappings--;
		physical_put(memory->physical);
		memory_remove(memory);
		free(memory);
	}
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
			size_t count)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around(address);
	if (!memory || !memory->physical || !access || count == 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	bool is_open = access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
	if (mprotect((void *)(uintptr_t)address, bytes,
		     is_open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
			CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around(address);
	if (!flags || !location || !memory || !memory->physical)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return driver_leave(CUDA_SUCCESS);
}
