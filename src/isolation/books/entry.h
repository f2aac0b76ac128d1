/* What every hook asks first; see books/entry.c. */
#pragma once

#include "driver/driver.h"

enum entry {
	ENTRY_PASS,   /* not for us: hand it to the driver as it is */
	ENTRY_CLOSED, /* refuse */
	ENTRY_OPEN,   /* keep the slice's books */
};

/* Any thread, at any time. */
enum entry enter(void);
/* The same without the CUDA driver, for NVML's. */
enum entry enter_slice(void);

/* Called in a forked child, the first time: nothing is its parent's any more. In hook/parts.c. */
void entry_forget_parent(void);

/* The driver's answer, or "not supported" where it has no such function. */
#define PASS(name, ...) (cuda.name ? cuda.name(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED)

/* The first lines of a hook: leaves it unless there are books to keep. */
#define ENTER(name, ...)                                                                           \
	do {                                                                                       \
		const enum entry entry_ = enter();                                                 \
		if (entry_ == ENTRY_CLOSED)                                                        \
			return CUDA_ERROR_SYSTEM_NOT_READY;                                        \
		if (entry_ == ENTRY_PASS || !cuda.name)                                            \
			return PASS(name, __VA_ARGS__);                                            \
	} while (0)

/* The same where the call gives something out: a NULL for it is the driver's to refuse. */
#define ENTER_TO_GIVE(given, name, ...)                                                            \
	do {                                                                                       \
		ENTER(name, __VA_ARGS__);                                                          \
		if (!(given))                                                                      \
			return cuda.name(__VA_ARGS__);                                             \
	} while (0)
