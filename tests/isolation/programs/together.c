/*
 * Threads that ask at once for the same number of bytes each, after code was loaded.
 *
 *	together <threads> <bytes>   prints how many got them
 */
#include "call.h"
#include "spin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static void *driver;
static CUcontext context;
static pthread_barrier_t barrier;
static atomic_int got;

static void *take(void *bytes)
{
	CUdeviceptr pointer;

	CALL(cuCtxSetCurrent, context);
	pthread_barrier_wait(&barrier);
	if (CALL(cuMemAlloc_v2, &pointer, *(size_t *)bytes) == CUDA_SUCCESS)
		atomic_fetch_add(&got, 1);
	return NULL;
}

int main(int count, char **words)
{
	pthread_t threads[64];
	CUmodule module;
	size_t bytes, free_bytes, total;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 3 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context) ||
	    CALL(cuMemGetInfo_v2, &free_bytes, &total) ||
	    CALL(cuModuleLoadData, &module, spin_image))
		return 2;
	const unsigned asking = (unsigned)atoi(words[1]);

	bytes = strtoull(words[2], NULL, 10);
	pthread_barrier_init(&barrier, NULL, asking);
	for (unsigned i = 0; i < asking; i++)
		pthread_create(&threads[i], NULL, take, &bytes);
	for (unsigned i = 0; i < asking; i++)
		pthread_join(threads[i], NULL);
	printf("%d\n", atomic_load(&got));
	return 0;
}
