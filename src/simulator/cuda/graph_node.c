/* Nodes are added: one function for each kind, and one for all. */
#include "event.h"
#include "graph.h"

#include <string.h>

static CUresult add(CUgraphNode *handle, CUgraph graph_handle, const CUgraphNode *before,
		    size_t count, CUgraphNodeParams *params)
{
	struct context *context;
	struct graph_node *node;
	struct work work;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	struct graph *graph = graph_of(graph_handle);
	if (!handle || !graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = graph_work_of(context, params, &work);
	if (result == CUDA_SUCCESS)
		result = graph_add(graph, before, count, &work, params, &node);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
		node->child = graph_clone(graph_of(params->graph.graph));
		if (!node->child)
			return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
		node->child->is_child = true;
	}
	*handle = (CUgraphNode)(void *)node;
	return driver_leave(CUDA_SUCCESS);
}

#define ADD(node_type, member, ...)                                                                \
	CUgraphNodeParams params = {.type = node_type};                                            \
	params.member = __VA_ARGS__;                                                               \
	return add(handle, graph, before, count, &params)

CUresult cuGraphAddEmptyNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			     size_t count)
{
	ADD(CU_GRAPH_NODE_TYPE_EMPTY, reserved2, 0);
}

static CUDA_KERNEL_NODE_PARAMS_v3 widen_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *old)
{
	CUDA_KERNEL_NODE_PARAMS_v3 wide = {0};

	memcpy(&wide, old, sizeof(*old));
	return wide;
}

static CUDA_KERNEL_NODE_PARAMS_v3 widen_v2(const CUDA_KERNEL_NODE_PARAMS_v2 *old)
{
	CUDA_KERNEL_NODE_PARAMS_v3 wide = {0};

	memcpy(&wide, old, sizeof(*old));
	return wide;
}

CUresult cuGraphAddKernelNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			      size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *kernel)
{
	ADD(CU_GRAPH_NODE_TYPE_KERNEL, kernel, widen_v1(kernel));
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
				 size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *kernel)
{
	ADD(CU_GRAPH_NODE_TYPE_KERNEL, kernel, widen_v2(kernel));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			      size_t count, const CUDA_MEMCPY3D *box, CUcontext context)
{
	ADD(CU_GRAPH_NODE_TYPE_MEMCPY, memcpy,
	    (CUDA_MEMCPY_NODE_PARAMS){.copyCtx = context, .copyParams = *box});
}

static CUDA_MEMSET_NODE_PARAMS_v2 widen_memset(const CUDA_MEMSET_NODE_PARAMS_v1 *old,
					       CUcontext context)
{
	CUDA_MEMSET_NODE_PARAMS_v2 wide = {0};

	memcpy(&wide, old, sizeof(*old));
	wide.ctx = context;
	return wide;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			      size_t count, const CUDA_MEMSET_NODE_PARAMS_v1 *fill,
			      CUcontext context)
{
	ADD(CU_GRAPH_NODE_TYPE_MEMSET, memset, widen_memset(fill, context));
}

CUresult cuGraphAddHostNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			    size_t count, const CUDA_HOST_NODE_PARAMS_v1 *host)
{
	ADD(CU_GRAPH_NODE_TYPE_HOST, host,
	    (CUDA_HOST_NODE_PARAMS_v2){.fn = host->fn, .userData = host->userData});
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
				  size_t count, CUgraph child)
{
	ADD(CU_GRAPH_NODE_TYPE_GRAPH, graph, (CUDA_CHILD_GRAPH_NODE_PARAMS){.graph = child});
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
				   size_t count, CUevent event)
{
	ADD(CU_GRAPH_NODE_TYPE_EVENT_RECORD, eventRecord, (CUDA_EVENT_RECORD_NODE_PARAMS){event});
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
				 size_t count, CUevent event)
{
	ADD(CU_GRAPH_NODE_TYPE_WAIT_EVENT, eventWait, (CUDA_EVENT_WAIT_NODE_PARAMS){event});
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
				size_t count, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *alloc)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
	CUresult result;

	if (!alloc)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&params.alloc, alloc, sizeof(*alloc));
	result = add(handle, graph, before, count, &params);
	alloc->dptr = params.alloc.dptr;
	return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			       size_t count, CUdeviceptr address)
{
	ADD(CU_GRAPH_NODE_TYPE_MEM_FREE, free, (CUDA_MEM_FREE_NODE_PARAMS){address});
}

CUresult cuGraphAddNode(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before, size_t count,
			CUgraphNodeParams *params)
{
	return params ? add(handle, graph, before, count, params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddNode_v2(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	(void)edges;
	return cuGraphAddNode(handle, graph, before, count, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *handle, CUgraph graph, const CUgraphNode *before,
			   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	return cuGraphAddNode_v2(handle, graph, before, edges, count, params);
}
