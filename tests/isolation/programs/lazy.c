/*
 * Launches whose code comes with the first of them, on cards whose contexts are not current.
 *
 *	lazy kernel     on a stream of card 0; card 1's context is current
 *	lazy graph      the same with a graph
 *	lazy together   one launch for both cards
 *	lazy shared     a kernel of a library, known by one handle: on card 1, then on card 0
 *	lazy unloaded   the same, and then the library is unloaded
 *	lazy recorded   a kernel that a stream of card 0 has recorded before, in vain
 *	lazy many N     N functions of as many modules, on card 1
 *
 * Prints the result, how much less is free on card 0, on card 1, and what the first
 * allocation on card 0 gets that asks for all that was free before.
 */
#include "call.h"
#include "spin.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place {
	CUcontext context;
	CUstream stream;
	CUfunction spin;
	size_t free_before, free_after;
};

static void *driver;
static struct place places[2];
static uint64_t duration_ns = 1000;
static void *parameters[] = {&duration_ns};

static CUresult get_spin(CUfunction *spin)
{
	CUmodule module;
	CUresult result = CALL(cuModuleLoadData, &module, spin_image);

	return result ? result : CALL(cuModuleGetFunction, spin, module, "spin");
}

/* Its context is current afterwards. */
static CUresult make_place(struct place *place, int card)
{
	CUresult result = CALL(cuCtxCreate_v2, &place->context, 0, card);

	if (!result)
		result = CALL(cuStreamCreate, &place->stream, CU_STREAM_NON_BLOCKING);
	return result ? result : get_spin(&place->spin);
}

static CUresult launch(CUfunction function, const struct place *place)
{
	return CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, place->stream, parameters, NULL);
}

static CUresult launch_graph(CUgraphExec exec)
{
	return CALL(cuGraphLaunch, exec, places[0].stream);
}

static CUresult make_graph(CUgraphExec *exec)
{
	const CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(places[0].spin, 1, parameters);
	CUgraph graph;
	CUgraphNode node;
	CUresult result = CALL(cuGraphCreate, &graph, 0);

	if (!result)
		result = CALL(cuGraphAddKernelNode_v2, &node, graph, NULL, 0, &kernel);
	return result ? result : CALL(cuGraphInstantiateWithFlags, exec, graph, 0);
}

static CUresult launch_together(void)
{
	CUDA_LAUNCH_PARAMS parts[2] = {{0}};

	for (int i = 0; i < 2; i++)
		parts[i] = launch_part(places[i].spin, places[i].stream, parameters);
	return CALL(cuLaunchCooperativeKernelMultiDevice, parts, 2, 0);
}

static CUresult launch_shared(bool is_unloaded)
{
	CUlibrary library;
	CUkernel kernel;
	CUresult result = CALL(cuLibraryLoadData, &library, spin_image, NULL, NULL, 0, NULL, NULL, 0);

	if (!result)
		result = CALL(cuLibraryGetKernel, &kernel, library, "spin");
	for (int i = 1; !result && i >= 0; i--)
		result = launch((CUfunction)kernel, &places[i]);
	return result || !is_unloaded ? result : CALL(cuLibraryUnload, library);
}

/* After an allocation, which looks at what came until then. */
static CUresult launch_recorded(void)
{
	const struct place *place = &places[0];
	CUdeviceptr pointer;
	CUcontext ignored;
	CUgraph graph;
	CUresult result =
		CALL(cuStreamBeginCapture_v2, place->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

	if (!result)
		result = launch(place->spin, place);
	if (!result)
		result = CALL(cuStreamEndCapture, place->stream, &graph);
	if (!result)
		result = CALL(cuCtxPushCurrent_v2, place->context);
	if (!result)
		result = CALL(cuMemAlloc_v2, &pointer, 1);
	if (!result)
		result = CALL(cuMemFree_v2, pointer);
	CALL(cuCtxPopCurrent_v2, &ignored);
	return result ? result : launch(place->spin, place);
}

static CUresult launch_many(int count)
{
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; !result && i < count; i++) {
		CUfunction function;

		result = get_spin(&function);
		if (!result)
			result = launch(function, &places[1]);
		if (!result)
			result = CALL(cuStreamSynchronize, places[1].stream);
	}
	return result;
}

static CUresult look(bool is_after)
{
	CUresult result = CUDA_SUCCESS;
	CUcontext ignored;

	for (int i = 0; !result && i < 2; i++) {
		size_t *bytes = is_after ? &places[i].free_after : &places[i].free_before;
		size_t total;

		result = CALL(cuCtxPushCurrent_v2, places[i].context);
		if (!result)
			result = CALL(cuMemGetInfo_v2, bytes, &total);
		CALL(cuCtxPopCurrent_v2, &ignored);
	}
	return result;
}

/* Before any look: what was launched alone must have told that there is less. */
static CUresult ask_for_all(void)
{
	CUdeviceptr pointer;
	CUcontext ignored;
	CUresult result = CALL(cuCtxPushCurrent_v2, places[0].context);

	if (result)
		return result;
	result = CALL(cuMemAlloc_v2, &pointer, places[0].free_before);
	CALL(cuCtxPopCurrent_v2, &ignored);
	return result;
}

/* Card 1's context is current afterwards. */
static CUresult prepare(CUgraphExec *exec)
{
	CUresult result = CALL(cuInit, 0);

	if (!result)
		result = make_place(&places[0], 0);
	if (!result)
		result = make_graph(exec);
	return result ? result : make_place(&places[1], 1);
}

static CUresult go(const char *way, CUgraphExec exec, int count)
{
	if (!strcmp(way, "kernel"))
		return launch(places[0].spin, &places[0]);
	if (!strcmp(way, "graph"))
		return launch_graph(exec);
	if (!strcmp(way, "together"))
		return launch_together();
	if (!strcmp(way, "shared") || !strcmp(way, "unloaded"))
		return launch_shared(!strcmp(way, "unloaded"));
	if (!strcmp(way, "recorded"))
		return launch_recorded();
	return launch_many(count);
}

int main(int count, char **words)
{
	CUgraphExec exec = NULL;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 2 || !driver)
		return 2;
	CUresult result = prepare(&exec);

	if (!result)
		result = look(false);
	if (!result)
		result = go(words[1], exec, count > 2 ? atoi(words[2]) : 1);
	const CUresult asked = result ? result : ask_for_all();

	if (!result)
		result = look(true);
	printf("%d %zu %zu %d\n", result, places[0].free_before - places[0].free_after,
	       places[1].free_before - places[1].free_after, asked);
	return 0;
}
