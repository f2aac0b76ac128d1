/* Hints about caches, attributes and loading: taken note of by nobody, refused by nobody. */
#include "library.h"

#include <string.h>

static CUresult in_context(void)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	return result == CUDA_SUCCESS ? driver_leave(result) : result;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	return in_context();
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	(void)config;
	return in_context();
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
	return in_context();
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config)
{
	(void)config;
	return function_of(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
				    CUflushGPUDirectRDMAWritesScope scope)
{
	(void)target;
	(void)scope;
	return in_context();
}

CUresult cuDeviceGetExecAffinitySupport(int *is_supported, CUexecAffinityType type, CUdevice device)
{
	(void)type;
	if (!is_supported)
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*is_supported = 0;
	return CUDA_SUCCESS;
}

/* Loading is the one hint that counts: it takes memory. */
CUresult cuFuncLoad(CUfunction handle)
{
	return function_load(handle);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
	struct context *context;
	struct module *module;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *function = function_of(handle);
	if (!state || !function)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = function_module(function, context, &module);
	if (result == CUDA_SUCCESS)
		*state = module->is_resident ? CU_FUNCTION_LOADING_STATE_LOADED
					     : CU_FUNCTION_LOADING_STATE_UNLOADED;
	return driver_leave(result);
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	return to && from ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
				       CUkernelNodeAttrValue *value)
{
	(void)attribute;
	if (!node || !value)
		return CUDA_ERROR_INVALID_VALUE;
	memset(value, 0, sizeof(*value));
	return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
				       const CUkernelNodeAttrValue *value)
{
	(void)attribute;
	return node && value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
