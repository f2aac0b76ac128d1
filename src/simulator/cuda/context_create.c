/* cuCtxCreate in its four versions, destruction, and the primary context. */
#include "context.h"

#include "graph_memory.h"
#include "ledger.h"
#include "memory.h"
#include "module.h"
#include "pool.h"
#include "stream.h"

/* CU_CTX_FLAGS_MASK grows with the driver; older and newer bits are taken as they come. */
static CUresult create(CUcontext *handle, unsigned flags, CUdevice ordinal)
{
	struct context *context;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct device *device = driver_device(ordinal);
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device)
		return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	result = context_open(device, flags, &context);
	if (result == CUDA_SUCCESS) {
		stack_push(context);
		*handle = (CUcontext)(void *)context;
	}
	return driver_leave(result);
}

CUresult cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device)
{
	return create(handle, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device)
{
	return create(handle, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinities, int count,
			unsigned int flags, CUdevice device)
{
	if (count < 0 || (count > 0 && !affinities))
		return CUDA_ERROR_INVALID_VALUE;
	return create(handle, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *parameters, unsigned int flags,
			CUdevice device)
{
	if (parameters && parameters->execAffinityParams && parameters->cigParams)
		return CUDA_ERROR_INVALID_VALUE;
	return create(handle, flags, device);
}

/* As graphics interfaces and later drivers make contexts: by a call that no library stands in for.
 */
GPUSIM_EXPORT CUresult gpusim_unknown_context(CUcontext *handle, CUdevice device);
CUresult gpusim_unknown_context(CUcontext *handle, CUdevice device)
{
	return create(handle, 0, device);
}

static void (*at_close)(const struct context *primary);

void context_at_close(void (*call)(const struct context *primary))
{
	at_close = call;
}

/* Everything that lives in the context goes with it. */
static void close_context(struct context *context)
{
	struct device *device = context->device;

	streams_close_all(context);
	modules_close_all(context);
	memory_drop_all(context);
	if (context->is_primary) {
		if (device->default_pool)
			memory_drop_pool(device->default_pool);
		pool_drop_default(device);
		graph_memory_drop_all(device);
	}
	ledger_give(device, context->cost_bytes);
	context->is_alive = false;
	if (at_close)
		at_close(context);
	ledger_let_go(device);
}

static CUresult destroy(CUcontext handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct context *context = context_of(handle);
	if (!context || context->is_primary || context->home)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (stack_top() == context)
		stack_pop();
	close_context(context);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext handle)
{
	return destroy(handle);
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
	return destroy(handle);
}

CUresult cuCtxAttach(CUcontext *handle, unsigned int flags)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!context->is_primary)
		context->references++;
	*handle = (CUcontext)(void *)context;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxDetach(CUcontext handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct context *context = context_of(handle);
	const bool is_shared = context && !context->is_primary && context->references > 0;

	if (is_shared)
		context->references--;
	driver_leave(CUDA_SUCCESS);
	return is_shared ? CUDA_SUCCESS : destroy(handle);
}

CUresult context_retain_primary(struct device *device, struct context **primary)
{
	CUresult result = CUDA_SUCCESS;

	*primary = context_primary(device);
	if (!*primary)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!(*primary)->is_alive)
		result = context_revive(*primary);
	if (result == CUDA_SUCCESS)
		(*primary)->references++;
	return result;
}

void context_release_primary(struct context *primary)
{
	if (--primary->references == 0)
		close_context(primary);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice ordinal)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct device *device = driver_device(ordinal);
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device)
		return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	struct context *primary;
	result = context_retain_primary(device, &primary);
	if (result == CUDA_SUCCESS)
		*handle = (CUcontext)(void *)primary;
	return driver_leave(result);
}

static CUresult release(CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device->primary || !device->primary->is_alive || device->primary->references == 0)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	context_release_primary(device->primary);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return release(device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return release(device);
}

/* The context goes, however many hold it; their releases find it gone. */
static CUresult reset(CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (device->primary && device->primary->is_alive)
		close_context(device->primary);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return reset(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return reset(device);
}

static CUresult set_flags(CUdevice ordinal, unsigned flags)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (context_primary(device))
		device->primary->flags = flags;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
	return set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
	return set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		*flags = device->primary ? device->primary->flags : 0;
	if (active)
		*active = device->primary && device->primary->is_alive;
	return driver_leave(CUDA_SUCCESS);
}
