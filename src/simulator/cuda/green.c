/*
 * Green contexts. Their multiprocessors are counted and not kept apart: a
 * kernel fills the card here. Whatever is made in one belongs to the primary
 * context that it holds alive.
 */

#include "context.h"
#include "ledger.h"
#include "settings.h"
#include "stream.h"

#include <stdlib.h>

enum { GREEN_MAGIC = 0x47524e30, DESCRIPTION_MAGIC = 0x44534330 };

struct green {
	uint32_t magic;
	unsigned multiprocessors;
	struct context context; /* what cuCtxFromGreenCtx gives */
	struct green *next;
};

struct description {
	uint32_t magic;
	unsigned multiprocessors;
};

static struct green *greens;

static struct green *green_of(CUgreenCtx handle)
{
	struct green *green = (struct green *)(void *)handle;

	return green && green->magic == GREEN_MAGIC && green->context.is_alive ? green : NULL;
}

/* Handles outlive their contexts, so that their use is an error. */
static void end_all(const struct context *primary)
{
	for (struct green *green = greens; green; green = green->next) {
		if (green->context.home != primary || !green->context.is_alive)
			continue;
		ledger_give(primary->device, green->context.cost_bytes);
		green->context.is_alive = false;
		green->context.default_stream = NULL;
	}
}

__attribute__((constructor)) static void start(void)
{
	context_at_close(end_all);
}

static CUresult make(struct device *device, unsigned multiprocessors, struct green **made)
{
	const uint64_t cost = setting_number("GPU_SIMULATOR_GREEN_CONTEXT_MIB", 0) * GPUSIM_MIB;
	struct green *green = calloc(1, sizeof(*green));
	struct context *primary;

	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = context_retain_primary(device, &primary);
	if (result == CUDA_SUCCESS && !ledger_take(device, cost)) {
		context_release_primary(primary);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result != CUDA_SUCCESS) {
		free(green);
		return result;
	}
	green->magic = GREEN_MAGIC;
	green->multiprocessors = multiprocessors;
	green->context = (struct context){.magic = CONTEXT_MAGIC,
					  .is_alive = true,
					  .cost_bytes = cost,
					  .device = device,
					  .home = primary};
	green->next = greens;
	greens = green;
	*made = green;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *handle, CUdevResourceDesc desc, CUdevice ordinal,
			  unsigned int flags)
{
	const struct description *description = (const struct description *)(void *)desc;
	struct green *green;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct device *device = driver_device(ordinal);
	if (!handle || !description || description->magic != DESCRIPTION_MAGIC ||
	    flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device)
		return driver_leave(CUDA_ERROR_INVALID_DEVICE);
	result = make(device, description->multiprocessors, &green);
	if (result == CUDA_SUCCESS)
		*handle = (CUgreenCtx)(void *)green;
	return driver_leave(result);
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct green *green = green_of(handle);
	if (!green)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (stack_top() == &green->context)
		stack_pop();
	ledger_give(green->context.device, green->context.cost_bytes);
	green->context.is_alive = false;
	context_release_primary(green->context.home);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct green *green = green_of(handle);
	if (!context || !green)
		return driver_leave(context ? CUDA_ERROR_INVALID_CONTEXT
					    : CUDA_ERROR_INVALID_VALUE);
	*context = (CUcontext)(void *)&green->context;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxStreamCreate(CUstream *handle, CUgreenCtx green_handle, unsigned int flags,
				int priority)
{
	struct stream *stream;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct green *green = green_of(green_handle);
	if (!green)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!handle || flags != CU_STREAM_NON_BLOCKING)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_make(green->context.home, flags, priority, &stream);
	if (result == CUDA_SUCCESS) {
		stream->green = &green->context;
		*handle = (CUstream)(void *)stream;
	}
	return driver_leave(result);
}

static CUgreenCtx handle_of(const struct context *context)
{
	for (struct green *green = greens; green && context; green = green->next) {
		if (&green->context == context)
			return (CUgreenCtx)(void *)green;
	}
	return NULL;
}

/* Enters and finds the stream; the caller leaves when this succeeds. */
static CUresult enter_stream(CUstream handle, enum default_stream null, struct stream **stream)
{
	struct context *context = NULL;
	CUresult result = handle ? driver_enter_bare() : driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		result = context_current(&context);
	if (result == CUDA_SUCCESS)
		result = stream_find(context, handle, null, stream);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static CUresult tell(CUstream handle, CUcontext *context, CUgreenCtx *green,
		     enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	/* The first version knows only contexts of the old kind. */
	if (!green && stream->green && handle)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	if (context)
		*context = (CUcontext)(void *)(green || !stream->green ? stream->context
								       : stream->green);
	if (green)
		*green = handle_of(stream->green);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	return context ? tell(stream, context, NULL, LEGACY) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
	return context ? tell(stream, context, NULL, PER_THREAD) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
	CUgreenCtx ignored;

	return tell(stream, context, green ? green : &ignored, LEGACY);
}

CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
	CUgreenCtx ignored;

	return tell(stream, context, green ? green : &ignored, PER_THREAD);
}

CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
	return green ? tell(stream, NULL, green, LEGACY) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult tell_multiprocessors(unsigned count, CUdevResource *resource,
				     CUdevResourceType type)
{
	if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = (CUdevResource){.type = type, .sm = {.smCount = count}};
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(
		tell_multiprocessors(device_card(device)->multiprocessors, resource, type));
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource *resource,
				  CUdevResourceType type)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct green *green = green_of(handle);
	return driver_leave(green ? tell_multiprocessors(green->multiprocessors, resource, type)
				  : CUDA_ERROR_INVALID_CONTEXT);
}

/* Pairs, as on cards of 7.x. */
CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count,
				     const CUdevResource *input, CUdevResource *rest,
				     unsigned int flags, unsigned int least)
{
	const unsigned each = least < 2 ? 2 : (least + 1) / 2 * 2;

	if (!count || !input || input->type != CU_DEV_RESOURCE_TYPE_SM || flags ||
	    input->sm.smCount < each)
		return CUDA_ERROR_INVALID_VALUE;
	const unsigned most = input->sm.smCount / each;
	*count = groups && *count < most ? *count : most;
	for (unsigned i = 0; groups && i < *count; i++)
		tell_multiprocessors(each, &groups[i], CU_DEV_RESOURCE_TYPE_SM);
	if (rest)
		tell_multiprocessors(input->sm.smCount - *count * each, rest,
				     CU_DEV_RESOURCE_TYPE_SM);
	return CUDA_SUCCESS;
}

/* Never freed: CUDA has no call for it either. */
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources,
				   unsigned int count)
{
	struct description *made;

	if (!desc || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	made = calloc(1, sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->magic = DESCRIPTION_MAGIC;
	for (unsigned i = 0; i < count; i++)
		made->multiprocessors += resources[i].sm.smCount;
	*desc = (CUdevResourceDesc)(void *)made;
	return CUDA_SUCCESS;
}
