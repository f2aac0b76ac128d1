/* What every NVML hook asks first; see view/nvml_entry.c. */
#pragma once

#include "books/entry.h"
#include "driver/driver.h"

/* Any thread. NVML never starts CUDA, and takes no slot: looking costs nothing. */
enum entry nvml_enter(void);

/* The line of the limits file that a device is, or CARD_FOREIGN. */
int nvml_card(nvmlDevice_t device);

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
