/* An executable graph takes over what changed in a graph of the same shape; steps on and off. */
#include "graph.h"

#include <stdlib.h>

/* The first step that is another kind of work; its number, or -1. */
static long first_difference(const struct graph_exec *old, const struct graph_exec *fresh)
{
	for (size_t i = 0; i < old->count && i < fresh->count; i++) {
		if (old->steps[i].work.type != fresh->steps[i].work.type)
			return (long)i;
	}
	return -1;
}

static CUgraphExecUpdateResult compare(const struct graph_exec *old, const struct graph_exec *fresh,
				       const struct graph_node **node)
{
	long different = first_difference(old, fresh);

	*node = NULL;
	if (old->count != fresh->count)
		return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
	if (different >= 0) {
		*node = fresh->steps[different].node;
		return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
	}
	return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResult *outcome,
		       CUgraphNode *error_node)
{
	struct graph_exec *fresh;
	const struct graph_node *node;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_exec *exec = exec_of(handle);
	const struct graph *graph = graph_of(graph_handle);
	if (!exec || !graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = exec_new(graph, exec->flags, &fresh);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	*outcome = compare(exec, fresh, &node);
	*error_node = (CUgraphNode)(uintptr_t)node;
	if (*outcome == CU_GRAPH_EXEC_UPDATE_SUCCESS)
		exec_swap(exec, fresh);
	exec_free(fresh);
	return driver_leave(*outcome == CU_GRAPH_EXEC_UPDATE_SUCCESS
				    ? CUDA_SUCCESS
				    : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
			   CUgraphExecUpdateResult *outcome)
{
	CUgraphExecUpdateResult found = CU_GRAPH_EXEC_UPDATE_ERROR;
	CUgraphNode node = NULL;
	CUresult result = update(exec, graph, &found, &node);

	if (error_node)
		*error_node = node;
	if (outcome)
		*outcome = found;
	return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	if (!info)
		return CUDA_ERROR_INVALID_VALUE;
	info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
	info->errorNode = NULL;
	info->errorFromNode = NULL;
	return update(exec, graph, &info->result, &info->errorNode);
}

/* The caller leaves when this succeeds. */
static CUresult enter_step(CUgraphExec handle, CUgraphNode node, struct graph_step **step)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_exec *exec = exec_of(handle);
	*step = exec ? exec_step(exec, node_of(node)) : NULL;
	return *step ? result : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int is_enabled)
{
	struct graph_step *step;
	CUresult result = enter_step(exec, node, &step);

	if (result != CUDA_SUCCESS)
		return result;
	if (step->work.type != CU_GRAPH_NODE_TYPE_KERNEL &&
	    step->work.type != CU_GRAPH_NODE_TYPE_MEMCPY &&
	    step->work.type != CU_GRAPH_NODE_TYPE_MEMSET)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	step->is_enabled = is_enabled != 0;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *is_enabled)
{
	struct graph_step *step;
	CUresult result = enter_step(exec, node, &step);

	if (result != CUDA_SUCCESS)
		return result;
	if (!is_enabled)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*is_enabled = step->is_enabled;
	return driver_leave(CUDA_SUCCESS);
}
