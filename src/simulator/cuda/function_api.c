/* What is asked of kernels: their attributes, parameters and names. */
#include "library.h"
#include "module.h"

#include <string.h>

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
