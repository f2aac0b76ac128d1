/*
 * What vLLM does before it serves: looks how much memory is free, records a
 * graph and allocates its memory meanwhile, looks again, takes all that is left
 * for its cache, and plays the graph. Prints the free MiB before, how many the
 * graph took by CUDA and by NVML, and the results of: a look while recording,
 * the recording, the cache, a piece more than there is, the graph on a full card.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "call.h"
#include "spin.h"
#include <nvml.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

enum { BUFFERS = 4 };
static const size_t mib = 1 << 20;
static void *driver, *library;
static CUfunction spin;
static CUstream stream;
static nvmlDevice_t card;

#define NVML(name, ...) (((__typeof__(name) *)dlsym(library, #name))(__VA_ARGS__))

static CUresult launch(void)
{
	uint64_t duration_ns = 10000;
	void *parameters[] = {&duration_ns};

	return CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static int start(void)
{
	CUcontext context;
	CUmodule module;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	return !driver || !library || NVML(nvmlInit_v2) ||
	       NVML(nvmlDeviceGetHandleByIndex_v2, 0, &card) || CALL(cuInit, 0) ||
	       CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context) ||
	       CALL(cuModuleLoadData, &module, spin_image) ||
	       CALL(cuModuleGetFunction, &spin, module, "spin") ||
	       CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) || launch() ||
	       CALL(cuStreamSynchronize, stream);
}

static CUresult look(size_t *free_bytes, size_t *nvml_free_bytes)
{
	size_t total_bytes;
	nvmlMemory_t memory = {0};
	const CUresult result = CALL(cuMemGetInfo_v2, free_bytes, &total_bytes);

	if (NVML(nvmlDeviceGetMemoryInfo, card, &memory))
		return CUDA_ERROR_UNKNOWN;
	*nvml_free_bytes = memory.free;
	return result;
}

/* PyTorch's allocator takes memory in the midst of a capture, in relaxed mode. */
static CUresult record(CUgraphExec *exec, CUresult *looked)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr buffer;
	CUgraph graph;
	size_t ignored, too;
	CUresult result =
		CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

	for (int i = 0; !result && i < BUFFERS; i++) {
		CALL(cuThreadExchangeStreamCaptureMode, &mode);
		result = CALL(cuMemAlloc_v2, &buffer, 64 * mib);
		*looked = look(&ignored, &too);
		CALL(cuThreadExchangeStreamCaptureMode, &mode);
		if (!result)
			result = launch();
	}
	const CUresult ended = CALL(cuStreamEndCapture, stream, &graph);

	result = result ? result : ended;
	return result ? result : CALL(cuGraphInstantiateWithFlags, exec, graph, 0);
}

int main(void)
{
	size_t before, after, nvml_before, nvml_after;
	CUgraphExec exec = NULL;
	CUdeviceptr cache;
	CUresult looked = CUDA_ERROR_UNKNOWN;

	if (start() || look(&before, &nvml_before))
		return 2;
	const CUresult recorded = record(&exec, &looked);

	if (recorded || look(&after, &nvml_after))
		return 3;
	const CUresult cached = CALL(cuMemAlloc_v2, &cache, after);
	const CUresult more = CALL(cuMemAlloc_v2, &cache, 2 * mib);
	CUresult played = CALL(cuGraphLaunch, exec, stream);

	if (!played)
		played = CALL(cuStreamSynchronize, stream);
	printf("%zu %zu %zu %d %d %d %d %d\n", before / mib, (before - after) / mib,
	       (nvml_before - nvml_after) / mib, looked, recorded, cached, more, played);
	return 0;
}
