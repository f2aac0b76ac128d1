/* How many blocks fit a multiprocessor, by threads alone; and what else launches are planned with.
 */
#include "module.h"

enum { THREADS_OF_MULTIPROCESSOR = 2048, MOST_THREADS_OF_BLOCK = 1024 };

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int threads,
						     size_t shared_bytes)
{
	(void)shared_bytes;
	if (!count || !function_of(function) || threads <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (function_load(function) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*count = threads > MOST_THREADS_OF_BLOCK ? 0 : THREADS_OF_MULTIPROCESSOR / threads;
	if (*count > 32)
		*count = 32;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, CUfunction function,
							      int threads, size_t shared_bytes,
							      unsigned int flags)
{
	(void)flags;
	return cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared_bytes);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *blocks, int *threads, CUfunction function,
					  CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
					  int most_threads)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	(void)shared_of_block;
	(void)shared_bytes;
	if (result != CUDA_SUCCESS)
		return result;
	if (!blocks || !threads || !function_of(function))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*threads = most_threads > 0 && most_threads < MOST_THREADS_OF_BLOCK ? most_threads
									    : MOST_THREADS_OF_BLOCK;
	*blocks = (int)device_card(context->device)->multiprocessors *
		  (THREADS_OF_MULTIPROCESSOR / *threads);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *blocks, int *threads, CUfunction function,
						   CUoccupancyB2DSize shared_of_block,
						   size_t shared_bytes, int most_threads,
						   unsigned int flags)
{
	(void)flags;
	return cuOccupancyMaxPotentialBlockSize(blocks, threads, function, shared_of_block,
						shared_bytes, most_threads);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
						 int threads)
{
	(void)threads;
	if (!bytes || !function_of(function) || blocks <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = 98304u / (unsigned)blocks;
	return CUDA_SUCCESS;
}

/* Cards of one node reach each other; copies between them go over the bus all the same. */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver_device(device) || !driver_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = device != peer;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from,
				 CUdevice to)
{
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver_device(from) || !driver_device(to) || from == to)
		return CUDA_ERROR_INVALID_DEVICE;
	*value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	return !context_of(peer) ? CUDA_ERROR_INVALID_CONTEXT
	       : flags           ? CUDA_ERROR_INVALID_VALUE
				 : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	return context_of(peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuProfilerStart(void)
{
	return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
	return CUDA_SUCCESS;
}
