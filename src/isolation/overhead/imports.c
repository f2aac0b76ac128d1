/*
 * Memory of another process, opened by its IPC handle. It counts for the process that exports it;
 * NVML may list it with the importer as well, and no driver says whether. What that leaves open is
 * what contexts and code should take, as with managed memory.
 */
#include "books/memory_limit.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "slice/killpoint.h"
#include "overhead/overhead.h"

/* Threads may share all of these. */

uint64_t imports_bytes(int card)
{
	const struct holding *entry;
	uint64_t bytes = 0;
	uint32_t place = 0;

	holdings_lock();
	while ((entry = holdings_next(KIND_IMPORT, &place)))
		bytes += entry->card == card ? entry->bytes : 0;
	holdings_unlock();
	return bytes;
}

/* Opened again it is the same address, and goes with the last close. */
static void change(CUdeviceptr pointer, uint32_t opened, uint32_t closed)
{
	struct holding entry = {.key = pointer,
				.context = (uint64_t)(uintptr_t)context_current(),
				.kind = KIND_IMPORT};
	size_t bytes = 0;
	int card = CARD_FOREIGN;

	if (opened && (!cuda.cuMemGetAddressRange_v2 || card_current(&card) != CUDA_SUCCESS ||
		       cuda.cuMemGetAddressRange_v2(NULL, &bytes, pointer) != CUDA_SUCCESS))
		return;
	entry.card = (int16_t)card;
	entry.bytes = bytes;
	holdings_lock();
	struct holding *known = holdings_at(KIND_IMPORT, pointer);

	if (!known && opened && holdings_add(&entry))
		known = holdings_at(KIND_IMPORT, pointer);
	if (known && (known->handles += opened - closed) == 0)
		holdings_remove(known);
	holdings_unlock();
}

/* A measurement in between would find it listed by NVML, and not here. */
#define OPENS(name)                                                                                \
	HOOK(name, (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned flags),                 \
	     (pointer, handle, flags), calls_begin(), PAUSEPOINT(import_opened);                   \
	     if (result == CUDA_SUCCESS) change(*pointer, 1, 0); calls_end())

OPENS(cuIpcOpenMemHandle)
OPENS(cuIpcOpenMemHandle_v2)
HOOK(cuIpcCloseMemHandle, (CUdeviceptr pointer), (pointer), calls_begin(),
     if (result == CUDA_SUCCESS) change(pointer, 0, 1);
     calls_end())
