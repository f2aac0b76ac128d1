/*
 * Records a graph in global mode, which forbids unsafe calls to every thread,
 * while another thread launches and waits on a stream of its own.
 * Prints the results of: the recording, the other thread, the end of the
 * capture, and a launch of what was recorded.
 */
#include "call.h"
#include "spin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

static void *driver;
static CUcontext context;
static CUfunction spin;

static CUresult launch(CUstream stream, int times)
{
	uint64_t duration_ns = 1000000;
	void *parameters[] = {&duration_ns};
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; !result && i < times; i++)
		result = CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
	return result;
}

static void *other(void *argument)
{
	CUstream stream = argument;

	CALL(cuCtxSetCurrent, context);
	return (void *)(uintptr_t)launch(stream, 20);
}

int main(void)
{
	CUstream recording, working;
	CUmodule module;
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr pointer;
	pthread_t thread;
	void *others = NULL;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
	    CALL(cuCtxSetCurrent, context) || CALL(cuModuleLoadData, &module, spin_image) ||
	    CALL(cuModuleGetFunction, &spin, module, "spin") ||
	    CALL(cuStreamCreate, &recording, CU_STREAM_NON_BLOCKING) ||
	    CALL(cuStreamCreate, &working, CU_STREAM_NON_BLOCKING) || launch(working, 3))
		return 2;
	CUresult begun = CALL(cuStreamBeginCapture_v2, recording, CU_STREAM_CAPTURE_MODE_GLOBAL);

	pthread_create(&thread, NULL, other, working);
	if (!begun)
		begun = launch(recording, 50);
	if (!begun)
		begun = CALL(cuMemAllocAsync, &pointer, 1 << 20, recording);
	if (!begun)
		begun = CALL(cuMemFreeAsync, pointer, recording);
	pthread_join(thread, &others);
	const CUresult ended = CALL(cuStreamEndCapture, recording, &graph);
	CUresult played = CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);

	if (!played)
		played = CALL(cuGraphLaunch, exec, working);
	if (!played)
		played = CALL(cuStreamSynchronize, working);
	printf("%d %d %d %d\n", begun, (int)(uintptr_t)others, ended, played);
	return 0;
}
