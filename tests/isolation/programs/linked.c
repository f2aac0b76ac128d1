/*
 * LINKED TO THE DRIVER by its header: no dlopen and no dlsym at all. Prints the
 * results of cuInit, a context, and two allocations.
 *
 *	linked <bytes> <bytes>
 */
#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
	CUcontext context;
	CUdeviceptr pointer;
	size_t free_bytes = 0, total_bytes = 0;

	if (count != 3)
		return 2;
	const CUresult started = cuInit(0);
	const CUresult made = started ? started : cuDevicePrimaryCtxRetain(&context, 0);

	if (!made)
		cuCtxSetCurrent(context);
	const CUresult first = cuMemAlloc(&pointer, strtoull(words[1], NULL, 10));
	const CUresult second = cuMemAlloc(&pointer, strtoull(words[2], NULL, 10));

	cuMemGetInfo(&free_bytes, &total_bytes);
	printf("%d %d %d %d %zu\n", started, made, first, second, total_bytes);
	return 0;
}
