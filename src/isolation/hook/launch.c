/* Every way to put work on the card, and every way to wait for it. */
#include "books/entry.h"
#include "compute/meter.h"
#include "driver/stream.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "unasked/overhead.h"

/* Threads may share all of these. */

/* Of one kind are launches of a function that are about as large. */
#define SIZE(grid, block)                                                                          \
	meter_size((uint64_t)grid##X *grid##Y *grid##Z, (uint64_t)block##X *block##Y *block##Z)

#define METERED(what, size, stream, call)                                                          \
	do {                                                                                       \
		struct meter_launch launch;                                                        \
		struct overhead_launch first;                                                      \
                                                                                                   \
		meter_before(&launch, meter_kind(what, size), stream);                             \
		overhead_begin_launch(&first, (const void *)(what), stream);                       \
		const CUresult result = call;                                                      \
                                                                                                   \
		overhead_end_launch(&first, (const void *)(what), stream, result, 0);              \
		meter_after(&launch, result);                                                      \
		return result;                                                                     \
	} while (0)

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
			unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
			unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
			void **kernelParams, void **extra)
{
	ENTER(cuLaunchKernel, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
	      sharedMemBytes, hStream, kernelParams, extra);
	METERED(f, SIZE(gridDim, blockDim), hStream,
		cuda.cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
				    blockDimZ, sharedMemBytes, hStream, kernelParams, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
			     unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
			     unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
			     void **kernelParams, void **extra)
{
	ENTER(cuLaunchKernel_ptsz, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
	      sharedMemBytes, hStream, kernelParams, extra);
	METERED(f, SIZE(gridDim, blockDim), stream_per_thread(hStream),
		cuda.cuLaunchKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
					 blockDimZ, sharedMemBytes, hStream, kernelParams, extra));
}

/* A NULL configuration is the driver's to refuse. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
			  void **extra)
{
	ENTER(cuLaunchKernelEx, config, f, kernelParams, extra);
	METERED(f, config ? SIZE(config->gridDim, config->blockDim) : 0,
		config ? config->hStream : NULL,
		cuda.cuLaunchKernelEx(config, f, kernelParams, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
			       void **extra)
{
	ENTER(cuLaunchKernelEx_ptsz, config, f, kernelParams, extra);
	METERED(f, config ? SIZE(config->gridDim, config->blockDim) : 0,
		stream_per_thread(config ? config->hStream : NULL),
		cuda.cuLaunchKernelEx_ptsz(config, f, kernelParams, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
				   unsigned int gridDimZ, unsigned int blockDimX,
				   unsigned int blockDimY, unsigned int blockDimZ,
				   unsigned int sharedMemBytes, CUstream hStream,
				   void **kernelParams)
{
	ENTER(cuLaunchCooperativeKernel, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
	      blockDimZ, sharedMemBytes, hStream, kernelParams);
	METERED(f, SIZE(gridDim, blockDim), hStream,
		cuda.cuLaunchCooperativeKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX,
					       blockDimY, blockDimZ, sharedMemBytes, hStream,
					       kernelParams));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
					unsigned int gridDimZ, unsigned int blockDimX,
					unsigned int blockDimY, unsigned int blockDimZ,
					unsigned int sharedMemBytes, CUstream hStream,
					void **kernelParams)
{
	ENTER(cuLaunchCooperativeKernel_ptsz, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
	      blockDimZ, sharedMemBytes, hStream, kernelParams);
	METERED(f, SIZE(gridDim, blockDim), stream_per_thread(hStream),
		cuda.cuLaunchCooperativeKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX,
						    blockDimY, blockDimZ, sharedMemBytes, hStream,
						    kernelParams));
}

/* Each part of it is work on its own stream's card. */
static CUresult launch_together(CUDA_LAUNCH_PARAMS *parts, unsigned count, unsigned flags)
{
	enum { CARDS = 64 };
	struct meter_launch launches[CARDS];
	struct overhead_launch first;

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
			parts[i].hStream);
	overhead_open_launch(&first);
	for (unsigned i = 0; i < count; i++)
		overhead_begin_part(&first, parts[i].function, parts[i].hStream);
	const CUresult result = cuda.cuLaunchCooperativeKernelMultiDevice(parts, count, flags);

	overhead_close_launch(&first, 0);
	for (unsigned i = 0; i < count; i++) {
		if (first.is_new && result == CUDA_SUCCESS)
			overhead_end_part(parts[i].function, parts[i].hStream);
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

/* The interface before CUDA 4. */
CUresult cuLaunch(CUfunction f)
{
	ENTER(cuLaunch, f);
	METERED(f, 0, NULL, cuda.cuLaunch(f));
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
	ENTER(cuLaunchGrid, f, grid_width, grid_height);
	METERED(f, meter_size((uint64_t)grid_width * (uint64_t)grid_height, 0), NULL,
		cuda.cuLaunchGrid(f, grid_width, grid_height));
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
	ENTER(cuLaunchGridAsync, f, grid_width, grid_height, hStream);
	METERED(f, meter_size((uint64_t)grid_width * (uint64_t)grid_height, 0), hStream,
		cuda.cuLaunchGridAsync(f, grid_width, grid_height, hStream));
}

/* A graph is one piece of work: one price, whatever nodes it holds and however they change. */
static CUresult launch_graph(CUgraphExec exec, CUstream stream, CUstream named,
			     __typeof__(cuGraphLaunch) *real)
{
	struct graph_growth growth;
	struct meter_launch launch;
	struct overhead_launch first;
	const void *name = graphs_name(exec);

	/* No other card's graphs may wait for room while we wait for this one's time. */
	meter_before(&launch, meter_kind(exec, 0), named);
	CUresult result = graph_begin(&growth, exec, named);

	if (result != CUDA_SUCCESS) {
		meter_after(&launch, result);
		return result;
	}
	overhead_begin_launch(&first, name, named);
	result = real(exec, stream);
	overhead_end_launch(&first, name, named, result,
			    graph_grown(&growth, overhead_quiesced_card(&first)));
	meter_after(&launch, result);
	graph_end(&growth, result);
	return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	ENTER(cuGraphLaunch, hGraphExec, hStream);
	return launch_graph(hGraphExec, hStream, hStream, cuda.cuGraphLaunch);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	ENTER(cuGraphLaunch_ptsz, hGraphExec, hStream);
	return launch_graph(hGraphExec, hStream, stream_per_thread(hStream),
			    cuda.cuGraphLaunch_ptsz);
}

#define WAITED(call)                                                                               \
	do {                                                                                       \
		const CUresult result = call;                                                      \
                                                                                                   \
		meter_after_sync();                                                                \
		pools_after_sync();                                                                \
		return result;                                                                     \
	} while (0)

CUresult cuStreamSynchronize(CUstream hStream)
{
	ENTER(cuStreamSynchronize, hStream);
	WAITED(cuda.cuStreamSynchronize(hStream));
}

CUresult cuStreamSynchronize_ptsz(CUstream hStream)
{
	ENTER(cuStreamSynchronize_ptsz, hStream);
	WAITED(cuda.cuStreamSynchronize_ptsz(hStream));
}

CUresult cuEventSynchronize(CUevent hEvent)
{
	ENTER(cuEventSynchronize, hEvent);
	WAITED(cuda.cuEventSynchronize(hEvent));
}

CUresult cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	WAITED(cuda.cuCtxSynchronize());
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	ENTER(cuCtxSynchronize_v2, ctx);
	WAITED(cuda.cuCtxSynchronize_v2(ctx));
}
