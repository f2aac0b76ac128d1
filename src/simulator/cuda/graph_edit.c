/* Nodes' parameters are read and changed, in a graph and in an executable. */
#include "event.h"
#include "graph.h"
#include "user_object.h"

#include <string.h>

/* A node of one of `type`; the caller leaves when this succeeds. */
static CUresult enter_node(CUgraphNode handle, CUgraphNodeType type, struct graph_node **node)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	*node = node_of(handle);
	return *node && (*node)->work.type == type ? result
						   : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* In the graph when `exec` is NULL, else in the executable only. */
static CUresult set_params(CUgraphExec exec_handle, bool in_exec, CUgraphNode handle,
			   CUgraphNodeParams *params)
{
	struct context *context;
	struct work work;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_node *node = node_of(handle);
	struct graph_exec *exec = exec_of(exec_handle);
	struct graph_step *step = exec ? exec_step(exec, node) : NULL;
	CUgraphNodeType type = step ? step->work.type : node ? node->work.type : params->type;
	if ((in_exec ? !step : !node) || type != params->type ||
	    type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
	    type == CU_GRAPH_NODE_TYPE_GRAPH)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = graph_work_of(context, params, &work);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (in_exec) {
		step->work = work;
	} else {
		node->work = work;
		node->params = *params;
	}
	return driver_leave(CUDA_SUCCESS);
}

#define SET(exec, in_exec, node_type, member, ...)                                                 \
	CUgraphNodeParams changed = {.type = node_type};                                           \
	if (!params)                                                                               \
		return CUDA_ERROR_INVALID_VALUE;                                                   \
	memcpy(&changed.member, params, sizeof(*params));                                          \
	__VA_ARGS__;                                                                               \
	return set_params(exec, in_exec, node, &changed)

#define GET(node_type, member)                                                                     \
	struct graph_node *found;                                                                  \
	CUresult result = enter_node(node, node_type, &found);                                     \
                                                                                                   \
	if (result != CUDA_SUCCESS)                                                                \
		return result;                                                                     \
	if (!params)                                                                               \
		return driver_leave(CUDA_ERROR_INVALID_VALUE);                                     \
	memcpy(params, &found->params.member, sizeof(*params));                                    \
	return driver_leave(CUDA_SUCCESS)

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	GET(CU_GRAPH_NODE_TYPE_KERNEL, kernel);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	GET(CU_GRAPH_NODE_TYPE_KERNEL, kernel);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	SET(NULL, false, CU_GRAPH_NODE_TYPE_KERNEL, kernel);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	SET(NULL, false, CU_GRAPH_NODE_TYPE_KERNEL, kernel);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	SET(exec, true, CU_GRAPH_NODE_TYPE_KERNEL, kernel);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
					   const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	SET(exec, true, CU_GRAPH_NODE_TYPE_KERNEL, kernel);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params)
{
	GET(CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *params)
{
	SET(NULL, false, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_MEMCPY3D *params, CUcontext context)
{
	SET(exec, true, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams,
	    changed.memcpy.copyCtx = context);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v1 *params)
{
	GET(CU_GRAPH_NODE_TYPE_MEMSET, memset);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS_v1 *params)
{
	SET(NULL, false, CU_GRAPH_NODE_TYPE_MEMSET, memset);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
					const CUDA_MEMSET_NODE_PARAMS_v1 *params, CUcontext context)
{
	SET(exec, true, CU_GRAPH_NODE_TYPE_MEMSET, memset, changed.memset.ctx = context);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS_v1 *params)
{
	GET(CU_GRAPH_NODE_TYPE_HOST, host);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS_v1 *params)
{
	SET(NULL, false, CU_GRAPH_NODE_TYPE_HOST, host);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
				      const CUDA_HOST_NODE_PARAMS_v1 *params)
{
	SET(exec, true, CU_GRAPH_NODE_TYPE_HOST, host);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *params)
{
	GET(CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *params)
{
	GET(CU_GRAPH_NODE_TYPE_MEM_FREE, free.dptr);
}

static CUresult get_event(CUgraphNode handle, CUgraphNodeType type, CUevent *event)
{
	struct graph_node *node;
	CUresult result = enter_node(handle, type, &node);

	if (result != CUDA_SUCCESS)
		return result;
	if (!event)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*event = (CUevent)(void *)node->work.event;
	return driver_leave(CUDA_SUCCESS);
}

/* In a graph when `in_exec` is false, else in the executable only. */
static CUresult set_event(CUgraphExec exec, bool in_exec, CUgraphNode node, CUgraphNodeType type,
			  CUevent event)
{
	CUgraphNodeParams changed = {.type = type};

	if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		changed.eventRecord.event = event;
	else
		changed.eventWait.event = event;
	return set_params(exec, in_exec, node, &changed);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
	return get_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event)
{
	return get_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
	return set_event(NULL, false, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
	return set_event(NULL, false, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	return set_event(exec, true, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	return set_event(exec, true, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	return params ? set_params(NULL, false, node, params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
	return params ? set_params(exec, true, node, params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	struct graph_node *found;
	CUresult result = enter_node(node, CU_GRAPH_NODE_TYPE_GRAPH, &found);

	if (result != CUDA_SUCCESS)
		return result;
	if (!graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*graph = (CUgraph)(void *)found->child;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
				 unsigned int flags)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct graph *graph = graph_of(handle);
	const bool is_moved = flags & CU_GRAPH_USER_OBJECT_MOVE;
	if (!graph || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(user_references_add(&graph->user_objects, object, count, is_moved));
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct graph *graph = graph_of(handle);
	if (!graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(user_references_remove(&graph->user_objects, object, count));
}
