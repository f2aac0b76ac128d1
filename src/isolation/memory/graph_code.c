/*
 * The kernels of executable graphs. A graph that was launched is known (overhead/launched.c), but
 * not any more when it has got kernels that it never had: by an update, or because its
 * number is another graph's by now. Then it goes by another name.
 */
#include "books/enter.h"
#include "memory/graphs.h"
#include "overhead/overhead.h"

#include <stdatomic.h>

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

void graphs_note_kernel(uint64_t exec, const void *kernel)
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

void graphs_note_node(uint64_t exec, CUgraphNode node)
{
	CUDA_KERNEL_NODE_PARAMS_v2 parameters = {0};
	CUDA_KERNEL_NODE_PARAMS_v1 early = {0};

	if (cuda.cuGraphKernelNodeGetParams_v2 &&
	    cuda.cuGraphKernelNodeGetParams_v2(node, &parameters) == CUDA_SUCCESS)
		graphs_note_kernel(exec, KERNEL_OF(parameters));
	else if (cuda.cuGraphKernelNodeGetParams &&
		 cuda.cuGraphKernelNodeGetParams(node, &early) == CUDA_SUCCESS)
		graphs_note_kernel(exec, early.func);
	else
		graphs_note_kernel(exec, NULL);
}

#define SETS_KERNEL(name, type, is_kernel, kernel)                                                 \
	HOOK(name, (CUgraphExec exec, CUgraphNode node, type * parameters),                        \
	     (exec, node, parameters), (void)0,                                                    \
	     if (result == CUDA_SUCCESS && (is_kernel))                                            \
		     graphs_note_kernel((uint64_t)(uintptr_t)exec, kernel))

SETS_KERNEL(cuGraphExecKernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS_v1, true,
	    parameters->func)
SETS_KERNEL(cuGraphExecKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS_v2, true,
	    KERNEL_OF(*parameters))
SETS_KERNEL(cuGraphExecNodeSetParams, CUgraphNodeParams,
	    parameters->type == CU_GRAPH_NODE_TYPE_KERNEL, KERNEL_OF(parameters->kernel))
