/*
 * Works on a card while the context of another is current, one piece after
 * another, and waits for each. Prints the result, the pieces done and the
 * simulated nanoseconds that it took.
 *
 *	cards second UNIT_NS SECONDS	on card 1, as usual
 *	cards kernel UNIT_NS SECONDS	on a stream of card 0; card 1's context is current
 *	cards graph UNIT_NS SECONDS	the same with a graph
 *	cards sibling UNIT_NS SECONDS	on a stream of card 0; another context of it is current
 *	cards green UNIT_NS SECONDS	on a stream of a green context of card 0; card 1's is
 *current cards greens UNIT_NS SECONDS	on the default streams of two such, each current in turn
 *	cards green_apart UNIT_NS SECONDS	on a stream of one such; behind each launch the other,
 *idle one is waited for
 *	cards together UNIT_NS SECONDS	one launch for both: a short part on card 1, then card 0's
 */
#include "place.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct place home, other;
static CUgraphExec exec;

static CUresult make_graph(void)
{
	const CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(home.spin, 1, home.parameters);
	CUgraph graph;
	CUgraphNode node;
	CUresult result = CALL(cuGraphCreate, &graph, 0);

	if (!result)
		result = CALL(cuGraphAddKernelNode_v2, &node, graph, NULL, 0, &kernel);
	return result ? result : CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
}

static CUgreenCtx greens[2];
static CUcontext green_contexts[2];

/* Two green contexts of card 0, and a stream of the first in place of home's. */
static CUresult make_greens(void)
{
	CUdevResource all, parts[2];
	unsigned count = 2;
	CUdevResourceDesc description;
	CUresult result = CALL(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);

	if (!result)
		result = CALL(cuDevSmResourceSplitByCount, parts, &count, &all, NULL, 0, 8);
	for (int i = 0; !result && i < 2; i++) {
		result = CALL(cuDevResourceGenerateDesc, &description, &parts[i], 1);
		if (!result)
			result = CALL(cuGreenCtxCreate, &greens[i], description, 0,
				      CU_GREEN_CTX_DEFAULT_STREAM);
		if (!result)
			result = CALL(cuCtxFromGreenCtx, &green_contexts[i], greens[i]);
	}
	return result ? result
		      : CALL(cuGreenCtxStreamCreate, &home.stream, greens[0],
			     CU_STREAM_NON_BLOCKING, 0);
}

/* The function is of another context of the card: the simulated driver takes it all the same. */
static CUresult launch_in_greens(void)
{
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; !result && i < 2; i++) {
		result = CALL(cuCtxSetCurrent, green_contexts[i]);
		if (!result)
			result = CALL(cuLaunchKernel, home.spin, 1, 1, 1, 1, 1, 1, 0, NULL,
				      home.parameters, NULL);
	}
	return result ? result : CALL(cuCtxSynchronize);
}

static CUresult launch_and_await_the_other(void)
{
	CUresult result = launch(&home);

	if (!result)
		result = CALL(cuCtxSetCurrent, green_contexts[1]);
	if (!result)
		result = CALL(cuCtxSynchronize);
	return result ? result : CALL(cuStreamSynchronize, NULL);
}

static CUresult launch_together(void)
{
	CUDA_LAUNCH_PARAMS parts[2] = {{0}};

	for (int i = 0; i < 2; i++) {
		struct place *place = i ? &home : &other;

		parts[i] = launch_part(place->spin, place->stream, place->parameters);
	}
	return CALL(cuLaunchCooperativeKernelMultiDevice, parts, 2, 0);
}

static CUresult piece(const char *way)
{
	if (!strcmp(way, "second"))
		return launch(&other);
	if (!strcmp(way, "greens"))
		return launch_in_greens();
	if (!strcmp(way, "green_apart"))
		return launch_and_await_the_other();
	if (!strcmp(way, "graph"))
		return CALL(cuGraphLaunch, exec, home.stream);
	return strcmp(way, "together") ? launch(&home) : launch_together();
}

int main(int count, char **words)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 4 || !driver)
		return 2;
	uint64_t (*now_ns)(void) = (uint64_t(*)(void))dlsym(driver, "gpusim_now_ns");
	int (*step)(unsigned) = (int (*)(unsigned))dlsym(driver, "gpusim_step_together");
	const uint64_t unit_ns = strtoull(words[2], NULL, 10);
	const char *way = words[1];
	CUresult result = CALL(cuInit, 0);
	uint64_t pieces = 0;

	if (!result)
		result = make_place(&home, 0, unit_ns);
	if (!result)
		result = make_graph();
	if (!result && !strncmp(way, "green", 5))
		result = make_greens();
	if (!result)
		result = make_place(&other, strcmp(way, "sibling") ? 1 : 0,
				    strcmp(way, "together") ? unit_ns : 1000);
	if (result || step(1))
		return 2;
	const CUstream stream = strcmp(way, "second") ? home.stream : other.stream;
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + (uint64_t)(atof(words[3]) * 1e9);

	for (; !result && now_ns() < end_ns; pieces++) {
		result = piece(way);
		if (!strcmp(way, "greens"))
			pieces++;
		else if (!result)
			result = CALL(cuStreamSynchronize, stream);
	}
	printf("%d %" PRIu64 " %" PRIu64 "\n", result, pieces, now_ns() - begin_ns);
	return 0;
}
