/*
 * Memory of others: of another process (IPC), or of another API (external
 * memory). The one that allocated it pays for it; here it takes nothing on the card,
 * though NVML lists it with this process as well.
 */
#include "import.h"

#include "ledger.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TICKET_MAGIC = 0x49504330, EXTERNAL_MAGIC = 0x45585430 };

void import_describe(const struct memory *memory, struct ticket *ticket)
{
	*ticket = (struct ticket){.magic = TICKET_MAGIC,
				  .pid = getpid(),
				  .file = backing_file(),
				  .card = memory->device->card,
				  .bytes = memory->bytes};
	memory_extent(memory, &ticket->offset, &ticket->span_bytes, &ticket->inside);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	struct ticket ticket;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct memory *memory = memory_around(address);
	if (!handle || !memory || memory->kind != MEMORY_DEVICE)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	import_describe(memory, &ticket);
	memcpy(handle, &ticket, sizeof(ticket));
	return driver_leave(CUDA_SUCCESS);
}

/* The exporter's pages, or, where its files cannot be opened, pages of our own. */
static void *map_ticket(const struct ticket *ticket)
{
	char path[64];
	int file;
	void *address;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->pid, ticket->file);
	file = open(path, O_RDWR | O_CLOEXEC);
	address = mmap(NULL, ticket->span_bytes, PROT_READ | PROT_WRITE,
		       file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, file,
		       file >= 0 ? (off_t)ticket->offset : 0);
	if (file >= 0)
		close(file);
	return address == MAP_FAILED ? NULL : address;
}

CUresult import_map(struct device *device, enum memory_kind kind, const struct ticket *ticket,
		    CUdeviceptr *address)
{
	if (ticket->magic != TICKET_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	void *pages = map_ticket(ticket);
	struct memory *memory = calloc(1, sizeof(*memory));

	if (!pages || !memory) {
		free(memory);
		return pages ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_MAP_FAILED;
	}
	memory->address = (uint64_t)(uintptr_t)pages + ticket->inside;
	memory->bytes = ticket->bytes;
	memory->kind = kind;
	memory->device = device;
	memory->offset = (uint64_t)(uintptr_t)pages;
	memory->flags = (unsigned)(ticket->span_bytes / MEMORY_BLOCK_BYTES);
	if (!memory_insert(memory)) {
		free(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ledger_import(device, (int64_t)ticket->span_bytes);
	*address = memory->address;
	return CUDA_SUCCESS;
}

CUresult import_drop(struct memory *memory)
{
	ledger_import(memory->device, -(int64_t)(memory->flags * MEMORY_BLOCK_BYTES));
	memory_remove(memory);
	munmap((void *)(uintptr_t)memory->offset, memory->flags * MEMORY_BLOCK_BYTES);
	free(memory);
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *address, const CUipcMemHandle *handle, unsigned flags)
{
	struct context *context;
	struct ticket ticket;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	memcpy(&ticket, handle, sizeof(ticket));
	if (!address || ticket.magic != TICKET_MAGIC || flags > CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (ticket.pid == getpid())
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	return driver_leave(import_map(context->device, MEMORY_IMPORTED, &ticket, address));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	return open_handle(address, &handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	return open_handle(address, &handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct memory *memory = memory_at(address);
	if (!memory || memory->kind != MEMORY_IMPORTED)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(import_drop(memory));
}

struct external {
	uint32_t magic;
	uint64_t bytes;
	uint64_t address; /* 0 until it is mapped */
	uint64_t span_bytes;
	struct context *context;
};

static struct external *external_of(CUexternalMemory handle)
{
	struct external *external = (struct external *)(void *)handle;

	return external && external->magic == EXTERNAL_MAGIC ? external : NULL;
}

CUresult cuImportExternalMemory(CUexternalMemory *handle,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !description || description->size == 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	struct external *external = calloc(1, sizeof(*external));
	if (!external)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	external->magic = EXTERNAL_MAGIC;
	external->bytes = description->size;
	external->context = context;
	/* On success the driver owns the descriptor. */
	close(description->handle.fd);
	*handle = (CUexternalMemory)(void *)external;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory handle,
					 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct external *external = external_of(handle);
	if (!address || !external || !description || description->flags ||
	    description->offset > external->bytes ||
	    description->size > external->bytes - description->offset)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!external->address) {
		external->span_bytes = (external->bytes + 4095) / 4096 * 4096;
		void *pages = mmap(NULL, external->span_bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (pages == MAP_FAILED)
			return driver_leave(CUDA_ERROR_MAP_FAILED);
		external->address = (uint64_t)(uintptr_t)pages;
	}
	*address = external->address + description->offset;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct external *external = external_of(handle);
	if (!external)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (external->address)
		munmap((void *)(uintptr_t)external->address, external->span_bytes);
	external->magic = 0;
	free(external);
	return driver_leave(CUDA_SUCCESS);
}
