/* A kernel: what its name says, and its handle. */
#include "module.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_KERNEL_NS 10000u

static uint64_t default_ns(void)
{
	return setting_number("GPU_SIMULATOR_KERNEL_NS", DEFAULT_KERNEL_NS);
}

struct function *function_new(const struct image_kernel *kernel)
{
	struct function *made = calloc(1, sizeof(*made));
	char *end;

	if (!made)
		return NULL;
	made->magic = FUNCTION_MAGIC;
	made->kernel = kernel;
	made->duration_ns = default_ns();
	made->takes_duration = strcmp(kernel->name, "spin") == 0;
	if (strncmp(kernel->name, "spin_", 5) == 0) {
		unsigned long long microseconds = strtoull(kernel->name + 5, &end, 10);

		if (end != kernel->name + 5 && *end == '\0')
			made->duration_ns = microseconds * 1000;
	}
	made->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
	made->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
	made->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 70;
	made->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 70;
	made->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152;
	return made;
}

void function_free(struct function *function)
{
	function->magic = 0;
	free(function->old);
	free(function);
}

struct function *function_of(const void *handle)
{
	struct function *function = (struct function *)(uintptr_t)handle;

	return function && function->magic == FUNCTION_MAGIC ? function : NULL;
}

/* Parameters come as an array of pointers, or packed in a buffer. */
uint64_t function_duration_ns(const struct function *function, void **parameters, void **extra)
{
	const void *first = parameters ? parameters[0] : NULL;
	uint64_t duration_ns;

	if (!function->takes_duration)
		return function->duration_ns;
	for (size_t i = 0; !first && extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			first = extra[i + 1];
	}
	if (!first)
		return function->duration_ns;
	memcpy(&duration_ns, first, sizeof(duration_ns));
	return duration_ns;
}
