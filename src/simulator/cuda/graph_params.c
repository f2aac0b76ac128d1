/* What a node's parameters mean: from the program's structures to work. */
#include "event.h"
#include "graph.h"
#include "library.h"
#include "module.h"

#include <string.h>

static CUresult kernel_work(struct context *context, const CUDA_KERNEL_NODE_PARAMS_v3 *kernel,
			    struct work *work)
{
	const struct function *function =
		function_of(kernel->func ? (const void *)kernel->func : (const void *)kernel->kern);

	if (!function || !kernel->gridDimX || !kernel->blockDimX)
		return CUDA_ERROR_INVALID_VALUE;
	work->ns = function_duration_ns(function, kernel->kernelParams, kernel->extra);
	return function_module(function, context, &work->module);
}

static CUresult memset_work(const CUDA_MEMSET_NODE_PARAMS_v2 *fill, struct work *work)
{
	if (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4)
		return CUDA_ERROR_INVALID_VALUE;
	work->copy = copy_linear(fill->dst, 0, fill->width * fill->elementSize);
	work->copy.is_fill = true;
	work->copy.element_bytes = fill->elementSize;
	work->copy.value = fill->value;
	work->copy.height = fill->height ? fill->height : 1;
	work->copy.to.row_bytes = fill->pitch;
	return CUDA_SUCCESS;
}

static CUresult alloc_work(struct context *context, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *alloc,
			   struct work *work)
{
	struct device *device = driver_device(alloc->poolProps.location.id);
	CUresult result;

	if (alloc->bytesize == 0 || alloc->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	result =
		graph_memory_new(device ? device : context->device, alloc->bytesize, &work->memory);
	if (result == CUDA_SUCCESS)
		alloc->dptr = work->memory->address;
	return result;
}

static CUresult free_work(CUdeviceptr address, struct work *work)
{
	work->memory = memory_at(address);
	return work->memory && work->memory->kind == MEMORY_GRAPH ? CUDA_SUCCESS
								  : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_work_of(struct context *context, CUgraphNodeParams *params, struct work *work)
{
	memset(work, 0, sizeof(*work));
	work->type = params->type;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return kernel_work(context, &params->kernel, work);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return copy_of_box(&params->memcpy.copyParams, &work->copy);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return memset_work(&params->memset, work);
	case CU_GRAPH_NODE_TYPE_HOST:
		work->host = params->host.fn;
		work->argument = params->host.userData;
		return work->host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return graph_of(params->graph.graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		work->event = event_of(params->eventRecord.event);
		return work->event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		work->event = event_of(params->eventWait.event);
		return work->event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return alloc_work(context, &params->alloc, work);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return free_work(params->free.dptr, work);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}
