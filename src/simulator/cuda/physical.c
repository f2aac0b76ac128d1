#include "physical.h"

#include "ledger.h"
#include "memory.h"
#include "settings.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Our mappings are of whole blocks, so nothing smaller is believed. */
uint64_t physical_granularity(void)
{
	const uint64_t bytes =
		setting_number("GPU_SIMULATOR_GRANULARITY_BYTES", MEMORY_BLOCK_BYTES);

	return bytes < MEMORY_BLOCK_BYTES || bytes & (bytes - 1) ? MEMORY_BLOCK_BYTES : bytes;
}

struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *physical = (struct physical *)(uintptr_t)handle;

	return physical && physical->magic == PHYSICAL_MAGIC && physical->handles ? physical : NULL;
}

int physical_file(const struct physical *physical)
{
	return physical->file >= 0 ? physical->file : backing_file();
}

void physical_put(struct physical *physical)
{
	if (physical->handles || physical->mappings)
		return;
	if (physical->charged_bytes)
		ledger_give(physical->device, physical->charged_bytes);
	if (physical->file >= 0)
		close(physical->file);
	else
		fallocate(backing_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			  (off_t)physical->offset, (off_t)physical->bytes);
	if (physical->device)
		ledger_let_go(physical->device);
	physical->magic = 0;
	free(physical);
}

/* Memory that may be exported has a file of its own: that file is what is exported. */
static bool back(struct physical *physical)
{
	if (!physical->properties.requestedHandleTypes)
		return backing_reserve(physical->bytes, &physical->offset);
	physical->file = (int)syscall(SYS_memfd_create, "gpusim-physical", 1u /* MFD_CLOEXEC */);
	return physical->file >= 0 && ftruncate(physical->file, (off_t)physical->bytes) == 0;
}

static CUresult create(struct physical *physical)
{
	if (physical->device && !ledger_hold(physical->device)) {
		physical->device = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (physical->device) {
		if (!ledger_take(physical->device, physical->bytes))
			return CUDA_ERROR_OUT_OF_MEMORY;
		physical->charged_bytes = physical->bytes;
	}
	return back(physical) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct physical *new_physical(uint64_t bytes, const CUmemAllocationProp *properties)
{
	struct physical *physical = calloc(1, sizeof(*physical));

	if (!physical)
		return NULL;
	physical->magic = PHYSICAL_MAGIC;
	physical->file = -1;
	physical->bytes = bytes;
	physical->properties = *properties;
	physical->device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE
				   ? driver_device(properties->location.id)
				   : NULL;
	return physical;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
		     const CUmemAllocationProp *properties, unsigned long long flags)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !properties || flags || bytes == 0 || bytes % physical_granularity() ||
	    properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    !driver_device(properties->location.id))
		return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	struct physical *physical = new_physical(bytes, properties);
	if (!physical)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	result = create(physical);
	if (result == CUDA_SUCCESS) {
		physical->handles = 1;
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	} else {
		physical_put(physical);
	}
	return driver_leave(result);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct physical *physical = physical_of(handle);
	if (!physical)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	physical->handles--;
	physical_put(physical);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around((uint64_t)(uintptr_t)address);
	if (!handle || !memory || !memory->physical)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memory->physical->handles++;
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)memory->physical;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
						CUmemGenericAllocationHandle handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct physical *physical = physical_of(handle);
	if (!properties || !physical)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*properties = physical->properties;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
				       CUmemAllocationGranularity_flags option)
{
	if (!bytes || !properties || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = physical_granularity();
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct physical *physical = physical_of(handle);
	if (!shareable || !physical || flags || physical->file < 0 ||
	    !(physical->properties.requestedHandleTypes & type))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	int file = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
	if (file < 0)
		return driver_leave(CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(shareable, &file, sizeof(file));
	return driver_leave(CUDA_SUCCESS);
}

/* The exporter goes on paying; here it takes nothing on the card. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					CUmemAllocationHandleType type)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .requestedHandleTypes = type};
	struct stat status;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	int file = (int)(intptr_t)shareable;
	if (!handle || fstat(file, &status) != 0 || status.st_size == 0 ||
	    (uint64_t)status.st_size % physical_granularity())
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	struct physical *physical = new_physical((uint64_t)status.st_size, &properties);
	if (!physical)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	physical->device = NULL;
	physical->handles = 1;
	physical->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
	*handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
	return driver_leave(CUDA_SUCCESS);
}
