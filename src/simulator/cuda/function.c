/* What a kernel's name says, and its attributes. */
#include "library.h"
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

CUresult function_load(const void *handle)
{
	struct context *context;
	struct module *module;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *function = function_of(handle);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	result = function_module(function, context, &module);
	return driver_leave(result == CUDA_SUCCESS ? module_make_resident(module) : result);
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *function = function_of(handle);
	if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	*value = function->attributes[attribute];
	return driver_leave(CUDA_SUCCESS);
}

static CUresult set_attribute(const void *handle, CUfunction_attribute attribute, int value)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct function *function = function_of(handle);
	if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX || value < 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	function->attributes[attribute] = value;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	const CUresult result = get_attribute(value, attribute, function);

	return result == CUDA_SUCCESS ? function_load(function) : result;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	const CUresult result = set_attribute(function, attribute, value);

	return result == CUDA_SUCCESS ? function_load(function) : result;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
			      CUdevice device)
{
	return driver_device(device) ? get_attribute(value, attribute, kernel)
				     : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
			      CUdevice device)
{
	return driver_device(device) ? set_attribute(kernel, attribute, value)
				     : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
	(void)config;
	return set_attribute(function, CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, 0);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device)
{
	(void)config;
	(void)device;
	return set_attribute(kernel, CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, 0);
}

static CUresult get_name(const char **name, const void *handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *function = function_of(handle);
	if (!name || !function)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*name = function->kernel->name;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	return get_name(name, function);
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	return get_name(name, kernel);
}

static CUresult get_parameter(const void *handle, size_t index, size_t *offset, size_t *bytes)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *function = function_of(handle);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!offset || index >= function->kernel->count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*offset = function->kernel->parameters[index].offset;
	if (bytes)
		*bytes = function->kernel->parameters[index].bytes;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
	return get_parameter(function, index, offset, bytes);
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
	return get_parameter(kernel, index, offset, bytes);
}

static CUresult count_parameters(const void *handle, size_t *count)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *function = function_of(handle);
	if (!function || !count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*count = function->kernel->count;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetParamCount(CUfunction function, size_t *count)
{
	return count_parameters(function, count);
}

CUresult cuKernelGetParamCount(CUkernel kernel, size_t *count)
{
	return count_parameters(kernel, count);
}
