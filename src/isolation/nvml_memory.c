/* NVML's memory figures: those of this container's slice of the card. */
#include "nvml_entry.h"

#include "view.h"

/* Threads may share these. */

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct view view;

	NVML_ENTER(nvmlDeviceGetMemoryInfo, device, memory);
	const nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo(device, memory);

	if (result == NVML_SUCCESS) {
		view_of(nvml_card(device), memory->free, memory->total, true, &view);
		memory->total = view.total;
		memory->used = view.used;
		memory->free = view.free;
	}
	return result;
}

/* Nothing is reserved in a slice: what the driver keeps was never part of it. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct view view;

	NVML_ENTER(nvmlDeviceGetMemoryInfo_v2, device, memory);
	const nvmlReturn_t result = nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);

	if (result == NVML_SUCCESS) {
		view_of(nvml_card(device), memory->free, memory->total, true, &view);
		memory->total = view.total;
		memory->reserved = 0;
		memory->used = view.used;
		memory->free = view.free;
	}
	return result;
}
