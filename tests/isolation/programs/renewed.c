/*
 * An executable graph that was launched gets a kernel that never was, whose code comes
 * with its next launch.
 *
 *	renewed update    by a graph
 *	renewed kernel    by the parameters of its node
 *	renewed node      the same by the function for all kinds of nodes
 *
 * Prints the result, and what the first allocation gets that asks for all that was free
 * before that launch.
 */
#include "call.h"
#include "spin.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *driver;
static uint64_t duration_ns = 1000;
static void *parameters[] = {&duration_ns};

static CUresult get_spin(CUfunction *spin)
{
	CUmodule module;
	CUresult result = CALL(cuModuleLoadData, &module, spin_image);

	return result ? result : CALL(cuModuleGetFunction, spin, module, "spin");
}

static CUresult make_graph(CUgraph *graph, CUgraphNode *node, CUfunction function)
{
	const CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(function, 1, parameters);
	CUresult result = CALL(cuGraphCreate, graph, 0);

	return result ? result : CALL(cuGraphAddKernelNode_v2, node, *graph, NULL, 0, &kernel);
}

static CUresult renew(const char *way, CUgraphExec exec, CUgraphNode node, CUfunction other)
{
	CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(other, 1, parameters);
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
	CUgraphExecUpdateResultInfo info;
	CUgraphNode ignored;
	CUgraph graph;
	CUresult result = make_graph(&graph, &ignored, other);

	any.kernel.func = other;
	any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = 1;
	any.kernel.blockDimX = any.kernel.blockDimY = any.kernel.blockDimZ = 1;
	any.kernel.kernelParams = parameters;
	if (result)
		return result;
	if (!strcmp(way, "kernel"))
		return CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, &kernel);
	if (!strcmp(way, "node"))
		return CALL(cuGraphExecNodeSetParams, exec, node, &any);
	return CALL(cuGraphExecUpdate_v2, exec, graph, &info);
}

static CUresult launch(CUgraphExec exec)
{
	CUresult result = CALL(cuGraphLaunch, exec, NULL);

	return result ? result : CALL(cuCtxSynchronize, );
}

static CUresult prepare(CUgraphExec *exec, CUgraphNode *node, CUfunction *other)
{
	CUfunction spin;
	CUgraph graph;
	CUresult result = get_spin(&spin);

	if (!result)
		result = get_spin(other);
	if (!result)
		result = make_graph(&graph, node, spin);
	if (!result)
		result = CALL(cuGraphInstantiateWithFlags, exec, graph, 0);
	return result ? result : launch(*exec);
}

int main(int count, char **words)
{
	size_t free_bytes, total_bytes;
	CUdeviceptr pointer;
	CUcontext context;
	CUgraphExec exec;
	CUgraphNode node;
	CUfunction other;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 2 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context) ||
	    prepare(&exec, &node, &other))
		return 2;
	/* So that the code of the first launch is in the books. */
	CALL(cuMemAlloc_v2, &pointer, 4096);
	CALL(cuMemGetInfo_v2, &free_bytes, &total_bytes);
	CUresult result = renew(words[1], exec, node, other);

	if (!result)
		result = launch(exec);
	printf("%d %d\n", result, CALL(cuMemAlloc_v2, &pointer, free_bytes));
	return 0;
}
