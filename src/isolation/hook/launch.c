/* Every way to put work on the card, and every way to wait for it. */
#include "books/enter.h"
#include "compute/meter.h"
#include "driver/stream.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "slice/killpoint.h"
#include "overhead/overhead.h"

/* Threads may share all of these. */

/* Of one kind are launches of a function that are about as large. */
#define SIZE(grid, block)                                                                          \
	meter_size((uint64_t)grid##X *grid##Y *grid##Z, (uint64_t)block##X *block##Y *block##Z)

#define LAUNCHES(what, size, stream, name, parameters, arguments)                                  \
	HOOK(name, parameters, arguments, struct meter_launch launch;                              \
	     meter_before(&launch, meter_kind(what, size), false, stream),                         \
	     overhead_note_launch((const void *)(what), stream, result);                           \
	     meter_after(&launch, result))

/* With the variant whose default stream is the thread's own. */
#define LAUNCHES_ALSO_PTSZ(what, size, stream, name, parameters, arguments)                        \
	LAUNCHES(what, size, stream, name, parameters, arguments)                                  \
	LAUNCHES(what, size, stream_per_thread(stream), name##_ptsz, parameters, arguments)

LAUNCHES_ALSO_PTSZ(f, SIZE(grid, block), stream, cuLaunchKernel,
		   (CUfunction f, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
		    unsigned blockY, unsigned blockZ, unsigned shared_bytes, CUstream stream,
		    void **parameters, void **extra),
		   (f, gridX, gridY, gridZ, blockX, blockY, blockZ, shared_bytes, stream,
		    parameters, extra))

/* A NULL configuration is the driver's to refuse. */
LAUNCHES_ALSO_PTSZ(f, config ? SIZE(config->gridDim, config->blockDim) : 0,
		   (config ? config->hStream : NULL), cuLaunchKernelEx,
		   (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),
		   (config, f, parameters, extra))

LAUNCHES_ALSO_PTSZ(f, SIZE(grid, block), stream, cuLaunchCooperativeKernel,
		   (CUfunction f, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
		    unsigned blockY, unsigned blockZ, unsigned shared_bytes, CUstream stream,
		    void **parameters),
		   (f, gridX, gridY, gridZ, blockX, blockY, blockZ, shared_bytes, stream,
		    parameters))

/* The interface before CUDA 4. */
LAUNCHES(f, 0, NULL, cuLaunch, (CUfunction f), (f))
LAUNCHES(f, meter_size((uint64_t)width *(uint64_t)height, 0), NULL, cuLaunchGrid,
	 (CUfunction f, int width, int height), (f, width, height))
LAUNCHES(f, meter_size((uint64_t)width *(uint64_t)height, 0), stream, cuLaunchGridAsync,
	 (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream))

/* Each part of it is work on its own stream's card. */
static CUresult launch_together(CUDA_LAUNCH_PARAMS *parts, unsigned count, unsigned flags)
{
	enum { CARDS = 64 };
	struct meter_launch launches[CARDS];

	/* A part a card: nobody has so many. */
	if (count > CARDS)
		return CUDA_ERROR_INVALID_VALUE;
	/* No card may stand idle, and pay for it, while we wait for the time of another. */
	for (unsigned i = 0; i < count; i++)
		meter_await(parts[i].hStream);
	for (unsigned i = 0; i < count; i++)
		meter_before(
			&launches[i],
			meter_kind(parts[i].function, SIZE(parts[i].gridDim, parts[i].blockDim)),
			false, parts[i].hStream);
	const CUresult result = cuda.cuLaunchCooperativeKernelMultiDevice(parts, count, flags);

	for (unsigned i = 0; i < count; i++) {
		overhead_note_launch(parts[i].function, parts[i].hStream, result);
		meter_after(&launches[i], result);
	}
	return result;
}

/* One kernel on several cards at once. Gone from new programs since CUDA 11. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
					      unsigned int numDevices, unsigned int flags)
{
	ENTER(cuLaunchCooperativeKernelMultiDevice, launchParamsList, numDevices, flags);
	return launch_together(launchParamsList, launchParamsList ? numDevices : 0, flags);
}

/* A graph is one piece of work: one price, whatever nodes it holds and however they change. */
static CUresult launch_graph(CUgraphExec exec, CUstream stream, CUstream named,
			     __typeof__(cuGraphLaunch) *real)
{
	struct graph_growth growth;
	struct meter_launch launch;
	const void *name = graphs_name(exec);

	/* No other card's graphs may wait for room while we wait for this one's time. */
	meter_before(&launch, meter_kind(exec, 0), false, named);
	CUresult result = graph_begin(&growth, exec, named);

	if (result != CUDA_SUCCESS) {
		meter_after(&launch, result);
		return result;
	}
	result = real(exec, stream);
	overhead_note_launch(name, named, result);
	meter_after(&launch, result);
	graph_end(&growth, result);
	return result;
}

#define LAUNCHES_GRAPH(named, name)                                                                \
	CUresult name(CUgraphExec exec, CUstream stream)                                           \
	{                                                                                          \
		ENTER(name, exec, stream);                                                         \
		return launch_graph(exec, stream, named, cuda.name);                               \
	}

LAUNCHES_GRAPH(stream, cuGraphLaunch)
LAUNCHES_GRAPH(stream_per_thread(stream), cuGraphLaunch_ptsz)

/* The driver may have let pools shrink. */
static void after_wait(const struct meter_wait *wait)
{
	meter_after_wait(wait);
	PAUSEPOINT(pool_synchronized);
	pools_after_sync();
}

#define WAITS(stream, is_for_all, name, parameters, arguments)                                     \
	HOOK(name, parameters, arguments, struct meter_wait wait;                                  \
	     meter_before_wait(&wait, stream, is_for_all),                                         \
	     if (result == CUDA_SUCCESS) after_wait(&wait))

WAITS(stream, false, cuStreamSynchronize, (CUstream stream), (stream))
WAITS(stream_per_thread(stream), false, cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAITS(METER_NO_STREAM, false, cuEventSynchronize, (CUevent event), (event))
WAITS(NULL, true, cuCtxSynchronize, (void), ())
WAITS(METER_NO_STREAM, false, cuCtxSynchronize_v2, (CUcontext context), (context))
