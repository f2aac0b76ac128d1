/* From a graph to what can be launched, and launching it. */
#include "capture.h"
#include "graph.h"
#include "ledger.h"
#include "settings.h"

#include <stdlib.h>

struct graph_exec *exec_of(CUgraphExec handle)
{
	struct graph_exec *exec = (struct graph_exec *)(void *)handle;

	return exec && exec->magic == EXEC_MAGIC ? exec : NULL;
}

static bool append(struct graph_exec *exec, const struct graph_node *node)
{
	struct graph_step *grown =
		realloc(exec->steps, (exec->count + 1) * sizeof(struct graph_step));

	if (!grown)
		return false;
	exec->steps = grown;
	exec->steps[exec->count++] =
		(struct graph_step){.work = node->work, .node = node, .is_enabled = true};
	if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		graph_memory_keep(node->work.memory);
	return node->child ? graph_order(node->child, exec) : true;
}

static bool is_ready(const struct graph_node *node)
{
	for (size_t i = 0; i < node->before_count; i++) {
		if (!node->before[i]->rank)
			return false;
	}
	return true;
}

/* Nodes in the order of their making as far as the edges allow: usually one pass. */
bool graph_order(const struct graph *graph, struct graph_exec *exec)
{
	size_t placed = 0;
	bool moved = true;

	for (struct graph_node *node = graph->nodes; node; node = node->next)
		node->rank = 0;
	while (moved && placed < graph->count) {
		moved = false;
		for (struct graph_node *node = graph->nodes; node; node = node->next) {
			if (node->rank || !is_ready(node))
				continue;
			if (!append(exec, node))
				return false;
			node->rank = (unsigned)++placed;
			moved = true;
		}
	}
	return placed == graph->count;
}

/* The most that is allocated at any time, when the steps run one after the other. */
static void find_claims(struct graph_exec *exec)
{
	uint64_t now_bytes[DRIVER_DEVICES] = {0};

	for (size_t i = 0; i < exec->count; i++) {
		const struct work *work = &exec->steps[i].work;

		if (work->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
		    work->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
			continue;
		const int ordinal = work->memory->device->ordinal;
		const uint64_t bytes = graph_memory_rounded(work->memory->bytes);
		struct graph_claim *claim = &exec->claims.of[ordinal];

		if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			now_bytes[ordinal] += bytes;
		else
			now_bytes[ordinal] -=
				bytes < now_bytes[ordinal] ? bytes : now_bytes[ordinal];
		if (now_bytes[ordinal] > claim->bytes)
			claim->bytes = now_bytes[ordinal];
	}
}

/* What an executable graph takes by itself, as far as it goes: more at its first launch. */
static CUresult take_own(struct graph_exec *exec, struct device *device, const char *name,
			 uint64_t otherwise_mib)
{
	const uint64_t bytes = setting_number(name, otherwise_mib) << 20;

	if (!bytes)
		return CUDA_SUCCESS;
	if (!exec->own_bytes && !ledger_hold(device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!ledger_take(device, bytes)) {
		if (!exec->own_bytes)
			ledger_let_go(device);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	exec->device = device;
	exec->own_bytes += bytes;
	return CUDA_SUCCESS;
}

static void give_own(struct graph_exec *exec)
{
	if (!exec->own_bytes)
		return;
	ledger_give(exec->device, exec->own_bytes);
	ledger_let_go(exec->device);
	exec->own_bytes = 0;
}

/* At the first launch, or the upload before it. */
static CUresult become_ready(struct graph_exec *exec, struct device *device)
{
	CUresult result = exec->is_ready ? CUDA_SUCCESS
					 : take_own(exec, exec->device ? exec->device : device,
						    "GPU_SIMULATOR_GRAPH_LAUNCH_MIB", 2);

	exec->is_ready |= result == CUDA_SUCCESS;
	return result == CUDA_SUCCESS ? graph_memory_claim(&exec->claims) : result;
}

void exec_free(struct graph_exec *exec)
{
	give_own(exec);
	user_references_drop(&exec->user_objects);
	graph_memory_unclaim(&exec->claims);
	for (size_t i = 0; i < exec->count; i++) {
		if (exec->steps[i].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			graph_memory_drop(exec->steps[i].work.memory);
	}
	exec->magic = 0;
	free(exec->steps);
	free(exec);
}

CUresult exec_new(const struct graph *graph, unsigned long long flags, struct graph_exec **exec)
{
	*exec = calloc(1, sizeof(**exec));
	if (!*exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*exec)->magic = EXEC_MAGIC;
	(*exec)->flags = flags;
	if (!graph_order(graph, *exec) ||
	    !user_references_copy(&(*exec)->user_objects, graph->user_objects)) {
		exec_free(*exec);
		return CUDA_ERROR_INVALID_VALUE;
	}
	find_claims(*exec);
	return CUDA_SUCCESS;
}

void exec_swap(struct graph_exec *exec, struct graph_exec *other)
{
	const struct graph_claims claims = exec->claims;
	struct user_references *held = exec->user_objects;

	exec->claims = other->claims;
	other->claims = claims;
	exec->user_objects = other->user_objects;
	other->user_objects = held;
	for (size_t i = 0; i < exec->count; i++) {
		struct work work = exec->steps[i].work;

		exec->steps[i].work = other->steps[i].work;
		other->steps[i].work = work;
	}
}

struct graph_step *exec_step(struct graph_exec *exec, const struct graph_node *node)
{
	for (size_t i = 0; i < exec->count; i++) {
		if (exec->steps[i].node == node)
			return &exec->steps[i];
	}
	return NULL;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags)
{
	struct context *context;
	struct graph_exec *exec;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	const struct graph *graph = graph_of(graph_handle);
	if (!handle || !graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = exec_new(graph, flags, &exec);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	result = take_own(exec, context->device, "GPU_SIMULATOR_GRAPH_MIB", 4);
	if (result == CUDA_SUCCESS)
		*handle = (CUgraphExec)(void *)exec;
	else
		exec_free(exec);
	return driver_leave(result);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *text,
			    size_t bytes)
{
	if (failed)
		*failed = NULL;
	if (text && bytes)
		*text = '\0';
	return instantiate(exec, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *text,
			       size_t bytes)
{
	return cuGraphInstantiate(exec, graph, failed, text, bytes);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	return instantiate(exec, graph, flags);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph,
				 CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	const cuuint64_t flag = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	result = instantiate(exec, graph, params->flags & ~flag);
	if (result == CUDA_SUCCESS && params->flags & flag)
		result = cuGraphUpload(*exec, params->hUploadStream);
	params->hErrNode_out = NULL;
	params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
						    : CUDA_GRAPH_INSTANTIATE_ERROR;
	return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return instantiate_with(exec, graph, params);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
					   CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return instantiate_with(exec, graph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!exec_of(handle))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	exec_free(exec_of(handle));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
	if (!exec_of(handle) || !flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = exec_of(handle)->flags;
	return CUDA_SUCCESS;
}

/* What an earlier launch allocated and nobody freed is an error, or is freed now. */
static CUresult settle_leftovers(const struct graph_exec *exec)
{
	for (size_t i = 0; i < exec->count; i++) {
		const struct work *work = &exec->steps[i].work;

		if (work->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
		    !graph_memory_is_live(work->memory))
			continue;
		if (!(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))
			return CUDA_ERROR_INVALID_VALUE;
		graph_memory_end(work->memory);
	}
	return CUDA_SUCCESS;
}

static CUresult run(struct graph_exec *exec, struct stream *stream)
{
	CUresult result = settle_leftovers(exec);

	if (result == CUDA_SUCCESS)
		result = become_ready(exec, stream->context->device);
	for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
		if (exec->steps[i].is_enabled)
			result = work_run(stream, &exec->steps[i].work);
	}
	return result;
}

/* A launch that is captured adds what the graph does to the one being made. */
static CUresult capture_steps(const struct graph_exec *exec, struct stream *stream)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
		CUgraphNodeParams params = {.type = exec->steps[i].work.type};

		if (exec->steps[i].is_enabled)
			result = capture_add(stream, &exec->steps[i].work, &params);
	}
	return result;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, enum default_stream null,
		       bool only_upload)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter_launch(&context);

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_exec *exec = exec_of(handle);
	if (!exec)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_find(context, stream_handle, null, &stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (stream->capture)
		return driver_leave(only_upload ? capture_invalidate(stream->capture)
						: capture_steps(exec, stream));
	result = only_upload ? become_ready(exec, context->device) : run(exec, stream);
	return driver_leave(result);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream, LEGACY, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream, PER_THREAD, false);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream, LEGACY, true);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream, PER_THREAD, true);
}
