/* What every hook asks first; see books/enter.c. */
#pragma once

#include "driver/driver.h"

enum entry {
	ENTRY_PASS,   /* no slice here: hand it to the driver as it is */
	ENTRY_CLOSED, /* refuse */
	ENTRY_OPEN,   /* keep the slice's books */
};

/* Any thread, at any time. */
enum entry enter(void);
/* The same without the CUDA driver, for NVML's. */
enum entry enter_slice(void);

/* What is called in a forked child, the first time: nothing is its parent's any more. */
void enter_register(void (*forget_parent)(void));

/* The driver's answer, or "not supported" where it has no such function. */
#define PASS(name, arguments) (cuda.name ? cuda.name arguments : CUDA_ERROR_NOT_SUPPORTED)

/* The first lines of a hook: leaves it unless there are books to keep. */
#define ENTER_WITH(name, arguments)                                                                \
	do {                                                                                       \
		const enum entry entry_ = enter();                                                 \
		if (entry_ == ENTRY_CLOSED)                                                        \
			return CUDA_ERROR_SYSTEM_NOT_READY;                                        \
		if (entry_ == ENTRY_PASS || !cuda.name)                                            \
			return PASS(name, arguments);                                              \
	} while (0)
#define ENTER(name, ...) ENTER_WITH(name, (__VA_ARGS__))

/*
 * A whole hook, where all there is to do is done before and after the driver's call:
 * HOOK(cuName, (int *value, CUstream stream), (value, stream), before, after), where `after`
 * finds the `result`. A block of its own: commas in it need no care.
 */
#define HOOK(name, parameters, arguments, before, ...)                                             \
	CUresult name parameters                                                                   \
	{                                                                                          \
		ENTER_WITH(name, arguments);                                                       \
		before;                                                                            \
		const CUresult result = cuda.name arguments;                                       \
                                                                                                   \
		__VA_ARGS__;                                                                       \
		return result;                                                                     \
	}
