/*
 * Memory of another process, opened by its IPC handle. It counts for the process that exports
 * it; NVML may list it with the importer as well, and then it is none of the overhead of
 * this process. Drivers differ, and none says so: each import is looked at.
 */
#include "books/memory_limit.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "overhead/overhead.h"

/* Threads may share all of these. */

uint64_t imports_listed(int card)
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

void imports_forget_context(CUcontext context)
{
	struct holding gone;
	uint32_t place = 0;

	while (holdings_take_of(KIND_IMPORT, (uint64_t)(uintptr_t)context, &place, &gone))
		;
}

/* Opened again it is the same address, and goes with the last close. */
static void remember(CUdeviceptr pointer, int card, uint64_t listed_bytes)
{
	struct holding entry = {.key = pointer,
				.bytes = listed_bytes,
				.context = (uint64_t)(uintptr_t)context_current(),
				.kind = KIND_IMPORT,
				.card = (int16_t)card,
				.handles = 1};

	holdings_lock();
	struct holding *known = holdings_at(KIND_IMPORT, pointer);

	if (known)
		known->handles++;
	else
		(void)holdings_add(&entry);
	holdings_unlock();
}

static void forget(CUdeviceptr pointer)
{
	holdings_lock();
	struct holding *known = holdings_at(KIND_IMPORT, pointer);

	if (known && --known->handles == 0)
		holdings_remove(known);
	holdings_unlock();
}

static CUresult open_handle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags,
			    __typeof__(cuIpcOpenMemHandle) *real)
{
	uint64_t before = 0, after = 0, moment;
	int card;

	if (card_current(&card) != CUDA_SUCCESS || card < 0 || !nvml_knows_pid())
		return real(pointer, handle, flags);
	/* Who measures meanwhile would find it listed, and not here. */
	calls_begin();
	const bool is_alone = calls_are_own(&moment) && nvml_own_listing(card, &before);
	const CUresult result = real(pointer, handle, flags);

	/* What other threads took meanwhile is in the figures too: then it is taken for our own. */
	if (result == CUDA_SUCCESS && is_alone && nvml_own_listing(card, &after) &&
	    calls_are_as_at(moment))
		remember(*pointer, card, after > before ? after - before : 0);
	calls_end();
	return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	ENTER(cuIpcOpenMemHandle, pdptr, handle, Flags);
	return open_handle(pdptr, handle, Flags, cuda.cuIpcOpenMemHandle);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	ENTER(cuIpcOpenMemHandle_v2, pdptr, handle, Flags);
	return open_handle(pdptr, handle, Flags, cuda.cuIpcOpenMemHandle_v2);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	ENTER(cuIpcCloseMemHandle, dptr);
	calls_begin();
	const CUresult result = cuda.cuIpcCloseMemHandle(dptr);

	if (result == CUDA_SUCCESS)
		forget(dptr);
	calls_end();
	return result;
}
