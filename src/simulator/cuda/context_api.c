/* The calling thread's stack of contexts, and what is asked about the current one. */
#include "capture.h"
#include "context.h"
#include "ledger.h"
#include "pool.h"
#include "stream.h"

static CUresult pop(CUcontext *handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct context *context = stack_pop();
	if (!context)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (handle)
		*handle = (CUcontext)(void *)context;
	return driver_leave(CUDA_SUCCESS);
}

static CUresult push(CUcontext handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct context *context = context_of(handle);
	if (!context || !stack_push(context))
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	return pop(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	return pop(context);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	return push(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	return push(context);
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (handle && !context_of(handle))
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	stack_set_top(context_of(handle));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*handle = (CUcontext)(void *)stack_top();
	return driver_leave(CUDA_SUCCESS);
}

/* The context of a handle, or the current one for NULL. The caller leaves when this succeeds. */
static CUresult enter_context(CUcontext handle, struct context **context)
{
	CUresult result = handle ? driver_enter_bare() : driver_enter(context);

	if (result != CUDA_SUCCESS || !handle)
		return result;
	*context = context_of(handle);
	if (*context && (*context)->home)
		*context = (*context)->home;
	return *context ? result : driver_leave(CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
	struct context *context;
	CUresult result = enter_context(handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*device = context->device->ordinal;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext handle)
{
	struct context *context;
	CUresult result = enter_context(handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	result = capture_refuse_unsafe();
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	context_wait(handle ? context_of(handle) : stack_top());
	pools_release_unused(context->device);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
	return cuCtxSynchronize_v2(NULL);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = context->flags;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	context->flags = flags;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct context *context;
	CUresult result = enter_context(handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!id)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*id = context->id;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	struct context *context;
	CUresult result = enter_context(handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!version)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*version = context->api_version;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if ((unsigned)limit >= CU_LIMIT_MAX)
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	*value = context->limits[limit];
	return driver_leave(CUDA_SUCCESS);
}

/* Heap and printf buffer lie on the card: a larger one takes more of it, without an allocation
 * call. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if ((unsigned)limit >= CU_LIMIT_MAX)
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE) {
		size_t old = context->limits[limit];

		if (value > old && !ledger_take(context->device, value - old))
			return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
		if (value > old)
			context->cost_bytes += value - old;
		else
			value = old;
	}
	context->limits[limit] = value;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_FUNC_CACHE_PREFER_NONE;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	(void)config;
	return CUDA_SUCCESS;
}
