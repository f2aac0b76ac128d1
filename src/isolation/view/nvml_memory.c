/* NVML's memory figures: those of this container's slice of the card. */
#include "view/nvml_entry.h"

#include "books/account.h"
#include "driver/stream.h"
#include "driver/cards.h"
#include "slice/limits.h"
#include "view/view.h"

/* Threads may share these. */

/*
 * Where the card's memory is the system's (GB10) NVML does not tell of it. The
 * slice has its figures all the same; of the card itself CUDA knows, if a
 * context of it is current.
 */
static bool unified_view(nvmlDevice_t device, struct view *view)
{
	size_t card_free = SIZE_MAX, card_total = SIZE_MAX;
	const int card = nvml_card(device);
	int current;

	if (account_limit(card) == LIMITS_NO_CAP)
		return false;
	if (cuda.cuCtxGetDevice && cuda.cuMemGetInfo_v2) {
		const CUstreamCaptureMode mode = capture_exempt();

		if (card_current(&current) != CUDA_SUCCESS || current != card ||
		    cuda.cuMemGetInfo_v2(&card_free, &card_total) != CUDA_SUCCESS)
			card_free = card_total = SIZE_MAX;
		capture_restore(mode);
	}
	view_of(card, card_free, card_total, true, view);
	return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct view view;

	NVML_ENTER(nvmlDeviceGetMemoryInfo, device, memory);
	const nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo(device, memory);

	if (result == NVML_SUCCESS)
		view_of(nvml_card(device), memory->free, memory->total, true, &view);
	else if (result != NVML_ERROR_NOT_SUPPORTED || !memory || !unified_view(device, &view))
		return result;
	memory->total = view.total;
	memory->used = view.used;
	memory->free = view.free;
	return NVML_SUCCESS;
}

/* Nothing is reserved in a slice: what the driver keeps was never part of it. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct view view;

	NVML_ENTER(nvmlDeviceGetMemoryInfo_v2, device, memory);
	const nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);

	if (result == NVML_SUCCESS)
		view_of(nvml_card(device), memory->free, memory->total, true, &view);
	else if (result != NVML_ERROR_NOT_SUPPORTED || !memory ||
		 memory->version != nvmlMemory_v2 || !unified_view(device, &view))
		return result;
	memory->total = view.total;
	memory->reserved = 0;
	memory->used = view.used;
	memory->free = view.free;
	return NVML_SUCCESS;
}
