/* What every NVML hook asks first. */
#pragma once

#include "books/enter.h"
#include "driver/driver.h"
#include "slice/slice.h"

/* Any thread. NVML never starts CUDA, and takes no slot: looking costs nothing. */
static inline enum entry nvml_enter(void)
{
	if (!driver_is_inside())
		driver_load_nvml(true);
	return enter_slice();
}

/*
 * The line of the limits file that a device is, or CARD_FOREIGN. Asked: handles may be given out
 * again, and it costs little beside the call itself.
 */
static inline int nvml_card(nvmlDevice_t device)
{
	char uuid[96];

	if (!nvml.nvmlDeviceGetUUID ||
	    nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
		return CARD_FOREIGN;
	return slice_card(uuid);
}

#define NVML_ENTER(name, ...)                                                                      \
	do {                                                                                       \
		const enum entry entry_ = nvml_enter();                                            \
		if (entry_ == ENTRY_CLOSED)                                                        \
			return NVML_ERROR_NO_PERMISSION;                                           \
		if (!nvml.name)                                                                    \
			return NVML_ERROR_FUNCTION_NOT_FOUND;                                      \
		if (entry_ == ENTRY_PASS)                                                          \
			return nvml.name(__VA_ARGS__);                                             \
	} while (0)

/*
 * Any thread. The processes that hold memory on a card, none if `is_compute` is false, in entries
 * of `bytes`: nvmlProcessDetail_v1_t, what begins as it does, or the beginning of it.
 */
nvmlReturn_t processes_list(nvmlDevice_t device, bool is_compute, unsigned *count, void *infos,
			    size_t bytes);
