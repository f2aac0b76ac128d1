/*
 * A graph with memory of its own waits on card 0 for the time that a kernel there has used
 * up, while such a graph is launched on card 1 again and again. Prints the result, and how
 * often that was before the first one went; it stops after a few.
 */
#include "call.h"
#include "spin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { ENOUGH = 50 };

static void *driver;
static CUcontext contexts[2];
static CUgraphExec graphs[2];
static atomic_bool has_gone;

static CUresult make_graph(int card)
{
	CUDA_MEM_ALLOC_NODE_PARAMS room = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card}},
		.bytesize = 1 << 20};
	CUgraphNode taken, given;
	CUgraph graph;
	CUresult result = CALL(cuDevicePrimaryCtxRetain, &contexts[card], card);

	if (!result)
		result = CALL(cuCtxSetCurrent, contexts[card]);
	if (!result)
		result = CALL(cuGraphCreate, &graph, 0);
	if (!result)
		result = CALL(cuGraphAddMemAllocNode, &taken, graph, NULL, 0, &room);
	if (!result)
		result = CALL(cuGraphAddMemFreeNode, &given, graph, &taken, 1, room.dptr);
	return result ? result : CALL(cuGraphInstantiateWithFlags, &graphs[card], graph, 0);
}

/* On card 0. */
static CUresult run_into_debt(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};
	CUfunction spin;
	CUmodule module;
	CUresult result = CALL(cuCtxSetCurrent, contexts[0]);

	if (!result)
		result = CALL(cuModuleLoadData, &module, spin_image);
	if (!result)
		result = CALL(cuModuleGetFunction, &spin, module, "spin");
	if (!result)
		result = CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	return result ? result : CALL(cuCtxSynchronize, );
}

static void *launch_on_0(void *argument)
{
	CALL(cuCtxSetCurrent, contexts[0]);
	CALL(cuGraphLaunch, graphs[0], NULL);
	atomic_store(&has_gone, true);
	return argument;
}

int main(void)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	pthread_t thread;
	int count = 0;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || CALL(cuInit, 0) || make_graph(0) || make_graph(1) ||
	    run_into_debt(100000000))
		return 2;
	pthread_create(&thread, NULL, launch_on_0, NULL);
	CUresult result = CALL(cuCtxSetCurrent, contexts[1]);

	for (; !result && count < ENOUGH && !atomic_load(&has_gone); count++) {
		result = CALL(cuGraphLaunch, graphs[1], NULL);
		nanosleep(&pause, NULL);
	}
	printf("%d %d\n", result, count);
	fflush(stdout);
	_exit(0);
}
