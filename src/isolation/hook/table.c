/* Finding the stand-in for a name or for a driver's pointer. Immutable, so threads may share it. */
#include "hook/table.h"

#include "driver/driver.h"

#include <string.h>

enum { LEGACY, PER_THREAD };

static const struct hook hooks[] = {
#define CUDA_HOOK(name, base, since, streams)                                                      \
	{#name, base, since, streams == PER_THREAD, (void *)name, (void *const *)&cuda.name},
#define NVML_HOOK(name) {#name, NULL, 0, false, (void *)name, (void *const *)&nvml.name},
#include "driver/symbols.def"
};

enum { HOOK_COUNT = sizeof(hooks) / sizeof(hooks[0]) };

const struct hook *hook_by_name(const char *name)
{
	for (size_t i = 0; i < HOOK_COUNT; i++)
		if (strcmp(hooks[i].name, name) == 0)
			return &hooks[i];
	return NULL;
}

const struct hook *hook_by_real(const void *function)
{
	for (size_t i = 0; function && i < HOOK_COUNT; i++)
		if (*hooks[i].real == function)
			return &hooks[i];
	return NULL;
}

const struct hook *hook_by_base(const char *base, int version, bool is_per_thread)
{
	const struct hook *best = NULL;

	for (size_t i = 0; i < HOOK_COUNT; i++) {
		const struct hook *hook = &hooks[i];

		if (!hook->base || strcmp(hook->base, base) != 0 || hook->since > version)
			continue;
		/* Most functions have one variant: the legacy one serves both. */
		if (hook->is_per_thread && !is_per_thread)
			continue;
		if (!best || hook->since > best->since ||
		    (hook->since == best->since && hook->is_per_thread))
			best = hook;
	}
	return best;
}
