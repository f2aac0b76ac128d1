/* A graph is made or updated: what its allocation nodes, and its children's, will want. */
#include "books/enter.h"
#include "driver/cards.h"
#include "driver/stream.h"
#include "memory/graphs.h"
#include "overhead/overhead.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { DEEPEST = 16 };
/* Today's drivers' own, for one that does not say. */
#define USUAL_BLOCK (2ull * 1024 * 1024)

static void add_all(struct graph_wants *wants, CUgraph graph, int depth);

/*
 * The kernels of executable graphs. A graph that was launched is known (overhead/overhead.c), but
 * not any more when it has got kernels that it never had: by an update, or because its
 * number is another graph's by now. Then it goes by another name.
 */
#define MIXED 0x9E3779B97F4A7C15ull
#define MIXED_TOO 0xC2B2AE3D27D4EB4Full

enum { EDITIONS_BITS = 12 };

/* Graphs may share one: then one is looked at once more than needed. */
static _Atomic uint32_t editions[1u << EDITIONS_BITS];

static _Atomic uint32_t *edition_of(uint64_t exec)
{
	return &editions[exec * MIXED >> (64 - EDITIONS_BITS)];
}

const void *graphs_name(CUgraphExec exec)
{
	const uint64_t key = (uint64_t)(uintptr_t)exec;
	const uint64_t edition = atomic_load_explicit(edition_of(key), memory_order_relaxed);

	return (const void *)(uintptr_t)(key ^ edition * MIXED_TOO);
}

/* It has this kernel from now on; NULL: one that the driver does not tell. */
static void note_kernel(uint64_t exec, const void *kernel)
{
	const uint64_t pair = exec * MIXED ^ (uint64_t)(uintptr_t)kernel * MIXED_TOO;

	if (kernel && launched_has(pair))
		return;
	atomic_fetch_add(edition_of(exec), 1);
	if (kernel)
		launched_add(pair);
}

/* A kernel node names a function of a context, or a kernel of a library. */
#define KERNEL_OF(parameters)                                                                      \
	((parameters).func ? (const void *)(parameters).func : (const void *)(parameters).kern)

static void note_node(uint64_t exec, CUgraphNode node)
{
	CUDA_KERNEL_NODE_PARAMS_v2 parameters = {0};
	const bool is_told = cuda.cuGraphKernelNodeGetParams_v2 &&
			     cuda.cuGraphKernelNodeGetParams_v2(node, &parameters) == CUDA_SUCCESS;

	note_kernel(exec, is_told ? KERNEL_OF(parameters) : NULL);
}

/*
 * What no node takes less of. Nothing documents that graphs take memory as cuMemCreate
 * does: a launch that takes more is charged more, and not refused.
 */
static uint64_t block_bytes(CUdevice device)
{
	const CUmemAllocationProp property = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	size_t block = 0;

	if (!cuda.cuMemGetAllocationGranularity ||
	    cuda.cuMemGetAllocationGranularity(
		    &block, &property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
		block = 0;
	return block ? block : USUAL_BLOCK;
}

static void add(struct graph_wants *wants, const CUDA_MEM_ALLOC_NODE_PARAMS *node)
{
	const CUmemLocation *location = &node->poolProps.location;
	int card = CARD_FOREIGN;
	CUdevice device;

	if (location_is_host(location))
		return;
	if (device_of_location(location, &device) == CUDA_SUCCESS)
		card = card_of_device(device);
	if (card < 0) {
		wants->is_foreign = true;
		return;
	}
	const uint64_t block = block_bytes(device);
	uint64_t bytes;

	if (__builtin_add_overflow(node->bytesize, block - 1, &bytes) ||
	    __builtin_add_overflow(wants->bytes[card], bytes - bytes % block, &wants->bytes[card]))
		wants->bytes[card] = UINT64_MAX;
	wants->devices[card] = device;
}

static void add_node(struct graph_wants *wants, CUgraphNode node, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {0};
	CUgraphNodeType type;
	CUgraph child;

	if (cuda.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return;
	if (type == CU_GRAPH_NODE_TYPE_KERNEL)
		note_node(wants->exec, node);
	else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && cuda.cuGraphMemAllocNodeGetParams &&
		 cuda.cuGraphMemAllocNodeGetParams(node, &parameters) == CUDA_SUCCESS)
		add(wants, &parameters);
	else if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < DEEPEST &&
		 cuda.cuGraphChildGraphNodeGetGraph &&
		 cuda.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		add_all(wants, child, depth + 1);
}

/* No lifetimes are followed: memory that is used twice is asked for twice, never too little. */
static void add_all(struct graph_wants *wants, CUgraph graph, int depth)
{
	size_t count = 0;

	if (cuda.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return;
	CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));

	if (nodes && cuda.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			add_node(wants, nodes[i], depth);
	free(nodes);
}

/* Success, always: the graph is made; it may be refused when it is launched. */
static CUresult note(CUgraphExec exec, CUgraph graph)
{
	struct graph_wants wants = {.exec = (uint64_t)(uintptr_t)exec};

	if (!cuda.cuGraphGetNodes || !cuda.cuGraphNodeGetType) {
		note_kernel(wants.exec, NULL);
		return CUDA_SUCCESS;
	}
	add_all(&wants, graph, 0);
	graphs_remember(exec, &wants);
	return CUDA_SUCCESS;
}

/* An executable graph takes memory of the card as soon as it is made. */
#define MAKES(name, parameters, arguments)                                                         \
	CUresult name parameters                                                                   \
	{                                                                                          \
		ENTER_WITH(name, arguments);                                                       \
		const CUresult result = cuda.name arguments;                                       \
                                                                                                   \
		overhead_note_growth(true);                                                        \
		return result == CUDA_SUCCESS ? note(*exec, graph) : result;                       \
	}

/* Threads may share all of these. */

MAKES(cuGraphInstantiate,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes),
      (exec, graph, error_node, log, bytes))
MAKES(cuGraphInstantiate_v2,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t bytes),
      (exec, graph, error_node, log, bytes))
MAKES(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
      (exec, graph, flags))

/*
 * An upload at once is made a call of its own, for which room is reserved: the
 * driver does not count the flag among a graph's own either.
 */
static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph,
				 CUDA_GRAPH_INSTANTIATE_PARAMS *params,
				 __typeof__(cuGraphInstantiateWithParams) *real)
{
	const cuuint64_t flag = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	const bool is_uploaded = params && cuda.cuGraphUpload && params->flags & flag;

	if (is_uploaded)
		params->flags &= ~flag;
	const CUresult result = real(exec, graph, params);

	overhead_note_growth(true);
	if (is_uploaded)
		params->flags |= flag;
	return result == CUDA_SUCCESS ? note(*exec, graph) : result;
}

static CUresult upload_as_asked(CUgraphExec *exec, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
				CUstream named, __typeof__(cuGraphUpload) *real)
{
	if (!real || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
		return CUDA_SUCCESS;
	const CUresult result = graph_upload(*exec, params->hUploadStream, named, real);

	if (result != CUDA_SUCCESS) {
		graphs_forget(*exec);
		cuda.cuGraphExecDestroy(*exec);
		*exec = NULL;
		params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
	}
	return result;
}

#define MAKES_WITH(named, name, upload)                                                            \
	CUresult name(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)     \
	{                                                                                          \
		ENTER(name, exec, graph, params);                                                  \
		const CUresult result = instantiate_with(exec, graph, params, cuda.name);          \
                                                                                                   \
		return result == CUDA_SUCCESS ? upload_as_asked(exec, params, named, cuda.upload)  \
					      : result;                                            \
	}

MAKES_WITH(params->hUploadStream, cuGraphInstantiateWithParams, cuGraphUpload)
MAKES_WITH(stream_per_thread(params->hUploadStream), cuGraphInstantiateWithParams_ptsz,
	   cuGraphUpload_ptsz)

/* What it has been made into may want more than before: its next launch reserves again. */
#define UPDATES(name, parameters, arguments)                                                       \
	HOOK(name, parameters, arguments, (void)0, if (result == CUDA_SUCCESS) note(exec, graph))

UPDATES(cuGraphExecUpdate,
	(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *found),
	(exec, graph, error_node, found))
UPDATES(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *found),
	(exec, graph, found))

/* Its allocation nodes cannot be changed so, but its kernels can. */
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
					    CUgraph childGraph)
{
	struct graph_wants ignored = {.exec = (uint64_t)(uintptr_t)hGraphExec};

	ENTER(cuGraphExecChildGraphNodeSetParams, hGraphExec, hNode, childGraph);
	const CUresult result =
		cuda.cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, childGraph);

	if (result == CUDA_SUCCESS && cuda.cuGraphGetNodes && cuda.cuGraphNodeGetType)
		add_all(&ignored, childGraph, 0);
	return result;
}

#define SETS_KERNEL(name, type, is_kernel, kernel)                                                 \
	HOOK(name, (CUgraphExec exec, CUgraphNode node, type * parameters),                        \
	     (exec, node, parameters), (void)0,                                                    \
	     if (result == CUDA_SUCCESS && (is_kernel))                                            \
		     note_kernel((uint64_t)(uintptr_t)exec, kernel))

SETS_KERNEL(cuGraphExecKernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS_v1, true,
	    parameters->func)
SETS_KERNEL(cuGraphExecKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS_v2, true,
	    KERNEL_OF(*parameters))
SETS_KERNEL(cuGraphExecNodeSetParams, CUgraphNodeParams,
	    parameters->type == CU_GRAPH_NODE_TYPE_KERNEL, KERNEL_OF(parameters->kernel))
