/* The table of our stand-ins, made from symbols.def. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct hook {
	const char *name;   /* as exported */
	const char *base;   /* as cuGetProcAddress is asked; NULL for NVML */
	int since;          /* CUDA version, 11020 for 11.2 */
	bool is_per_thread; /* the per-thread default stream's variant */
	void *function;     /* the hook */
	void *const *real;  /* the driver's, once loaded */
};

/* Exact name; NULL when we have no stand-in. Any thread. */
const struct hook *hook_by_name(const char *name);

/* The stand-in for a pointer that the driver gave out; NULL when it is none of those we know. */
const struct hook *hook_by_real(const void *function);

/* What a program built against `version` means by `base`; NULL when we stand in for no version. */
const struct hook *hook_by_base(const char *base, int version, bool is_per_thread);

/*
 * For a function of the driver's that we have no stand-in for: counts those that by their
 * name, or base name, change what is counted, and says so once each.
 */
void drift_note(const char *name);
