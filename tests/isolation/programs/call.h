/*
 * A function of the driver, looked up by the very name that is written: for
 * programs that are not linked to it, and call one thing many ways. `driver`
 * must be in sight, what dlopen gave for libcuda.so.1.
 */
#ifndef PROGRAMS_CALL_H
#define PROGRAMS_CALL_H

#define __CUDA_API_VERSION_INTERNAL 1 /* else cuda.h renames what is looked up */
#include <cuda.h>

#include <dlfcn.h>

#define CALL(name, ...) (((__typeof__(name) *)dlsym(driver, #name))(__VA_ARGS__))

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

#endif
