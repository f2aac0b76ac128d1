/*
 * A module with the kernel whose time is its parameter (src/simulator/cuda/module.h), and
 * descriptions of its launches.
 */
#ifndef PROGRAMS_SPIN_H
#define PROGRAMS_SPIN_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1 /* else cuda.h renames what is looked up */
#endif
#include <cuda.h>

static const char spin_image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
				 ".visible .entry spin(.param .u64 ns) { ret; }\n";

/* A graph's node for a kernel of blocks of one thread. */
static inline CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, unsigned blocks,
						  void **parameters)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function,
					 .gridDimX = blocks,
					 .gridDimY = 1,
					 .gridDimZ = 1,
					 .blockDimX = 1,
					 .blockDimY = 1,
					 .blockDimZ = 1,
					 .kernelParams = parameters};
}

/* One card's part of a launch for several: one block of one thread. */
static inline CUDA_LAUNCH_PARAMS launch_part(CUfunction function, CUstream stream,
					     void **parameters)
{
	return (CUDA_LAUNCH_PARAMS){.function = function,
				    .gridDimX = 1,
				    .gridDimY = 1,
				    .gridDimZ = 1,
				    .blockDimX = 1,
				    .blockDimY = 1,
				    .blockDimZ = 1,
				    .hStream = stream,
				    .kernelParams = parameters};
}

#endif
