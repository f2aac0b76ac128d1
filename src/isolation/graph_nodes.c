/* Instantiating a graph: what its allocation nodes, and those of its children, will want. */
#include "entry.h"
#include "table.h"

#include <stdlib.h>

enum { DEEPEST = 16 };

static uint64_t sum_of(CUgraph graph, int depth);

static uint64_t node_bytes(CUgraphNode node, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {0};
	CUgraphNodeType type;
	CUgraph child;

	if (cuda.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return 0;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && cuda.cuGraphMemAllocNodeGetParams &&
	    cuda.cuGraphMemAllocNodeGetParams(node, &parameters) == CUDA_SUCCESS)
		return parameters.bytesize;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < DEEPEST &&
	    cuda.cuGraphChildGraphNodeGetGraph &&
	    cuda.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		return sum_of(child, depth + 1);
	return 0;
}

/* No lifetimes are followed: memory that is used twice is asked for twice, never too little. */
static uint64_t sum_of(CUgraph graph, int depth)
{
	size_t count = 0;
	uint64_t sum = 0;

	if (cuda.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
		return 0;
	CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));

	if (nodes && cuda.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			if (__builtin_add_overflow(sum, node_bytes(nodes[i], depth), &sum))
				sum = UINT64_MAX;
	free(nodes);
	return sum;
}

/* Success, always: the graph is made; it may be refused when it is launched. */
static CUresult note(CUgraphExec exec, CUgraph graph)
{
	struct table_entry entry = {.key = (uint64_t)(uintptr_t)exec, .kind = KIND_GRAPH};
	struct table_entry stale;

	if (!cuda.cuGraphGetNodes || !cuda.cuGraphNodeGetType)
		return CUDA_SUCCESS;
	entry.bytes = sum_of(graph, 0);
	table_take(KIND_GRAPH, entry.key, &stale);
	if (entry.bytes)
		table_put(&entry);
	return CUDA_SUCCESS;
}

#define NOTED(call)                                                                                \
	do {                                                                                       \
		const CUresult result = call;                                                      \
                                                                                                   \
		return result == CUDA_SUCCESS ? note(*phGraphExec, hGraph) : result;               \
	} while (0)

/* Threads may share all of these. */

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
			    char *logBuffer, size_t bufferSize)
{
	ENTER(cuGraphInstantiate, phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
	NOTED(cuda.cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
			       char *logBuffer, size_t bufferSize)
{
	ENTER(cuGraphInstantiate_v2, phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
	NOTED(cuda.cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
				     unsigned long long flags)
{
	ENTER(cuGraphInstantiateWithFlags, phGraphExec, hGraph, flags);
	NOTED(cuda.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	ENTER(cuGraphInstantiateWithParams, phGraphExec, hGraph, instantiateParams);
	NOTED(cuda.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
					   CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	ENTER(cuGraphInstantiateWithParams_ptsz, phGraphExec, hGraph, instantiateParams);
	NOTED(cuda.cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams));
}
