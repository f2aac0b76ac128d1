/*
 * Pools for other processes. A pool's handle is a file that says whose it is;
 * pointers of it are told one by one. The exporter goes on paying.
 */
#include "import.h"
#include "pool.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SHARE_MAGIC = 0x504f4f31 };

/* What the file says. */
struct share {
	uint32_t magic;
	uint32_t card;
};

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool handle,
					  CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct pool *pool = pool_of(handle);
	if (!handle_out || !pool || !pool->device || flags || !(pool->handle_types & type))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	const struct share share = {SHARE_MAGIC, pool->device->card};
	const int file = (int)syscall(SYS_memfd_create, "gpusim-pool", 1u /* MFD_CLOEXEC */);
	if (file < 0 || pwrite(file, &share, sizeof(share), 0) != (ssize_t)sizeof(share))
		return driver_leave(CUDA_ERROR_OPERATING_SYSTEM);
	memcpy(handle_out, &file, sizeof(file));
	return driver_leave(CUDA_SUCCESS);
}

static struct device *device_of_card(uint32_t card)
{
	for (int i = 0; i < driver.count; i++) {
		if (driver.devices[i].card == card)
			return &driver.devices[i];
	}
	return NULL;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle_out, void *handle,
					    CUmemAllocationHandleType type,
					    unsigned long long flags)
{
	struct share share = {0};
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	if (!handle_out || flags ||
	    pread((int)(intptr_t)handle, &share, sizeof(share), 0) != (ssize_t)sizeof(share) ||
	    share.magic != SHARE_MAGIC)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	struct device *device = device_of_card(share.card);
	if (!device)
		return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	*handle_out = (CUmemoryPool)(void *)pool_imported(device);
	return driver_leave(*handle_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *told, CUdeviceptr address)
{
	struct ticket ticket;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_at(address);
	if (!told || !memory || memory->kind != MEMORY_POOL || !memory->pool->handle_types)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	import_describe(memory, &ticket);
	ticket.pool = memory->pool->id;
	memcpy(told, &ticket, sizeof(ticket));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool handle,
				CUmemPoolPtrExportData *told)
{
	struct ticket ticket;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct pool *pool = pool_of(handle);
	if (!address || !pool || !pool->is_imported || !told)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&ticket, told, sizeof(ticket));
	if (!ticket.pool)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(import_map(pool->device, MEMORY_POOL_IMPORTED, &ticket, address));
}
