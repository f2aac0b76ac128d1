/*
 * One thread launches functions that were never launched, each with a module of its
 * own that comes with its first launch, while others allocate and free.
 *
 *	throng <threads> <functions> <bytes>   prints failures, and how much less is free at the end
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *driver;
static CUcontext context;
static size_t bytes;
static atomic_bool is_over;
static atomic_int failures;

#define CALL(name, ...) (((__typeof__(name) *)dlsym(driver, #name))(__VA_ARGS__))

static void *work(void *argument)
{
	CALL(cuCtxSetCurrent, context);
	while (!atomic_load(&is_over)) {
		CUdeviceptr pointer;

		if (CALL(cuMemAlloc_v2, &pointer, bytes) || CALL(cuMemFree_v2, pointer))
			atomic_fetch_add(&failures, 1);
	}
	return argument;
}

static CUresult launch_new(void)
{
	uint64_t duration_ns = 100;
	void *parameters[] = {&duration_ns};
	CUmodule module;
	CUfunction spin;
	CUresult result = CALL(cuModuleLoadData, &module, "");

	if (!result)
		result = CALL(cuModuleGetFunction, &spin, module, "spin");
	if (!result)
		result = CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	return result;
}

int main(int count, char **words)
{
	size_t before = 0, after = 0, total;
	pthread_t threads[64];

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 4 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 2;
	const int workers = atoi(words[1]) % 64;

	bytes = strtoull(words[3], NULL, 10);
	CALL(cuMemGetInfo_v2, &before, &total);
	for (int i = 0; i < workers; i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < atoi(words[2]); i++)
		if (launch_new())
			atomic_fetch_add(&failures, 1);
	atomic_store(&is_over, true);
	for (int i = 0; i < workers; i++)
		pthread_join(threads[i], NULL);
	CALL(cuMemGetInfo_v2, &after, &total);
	printf("%d %zu\n", atomic_load(&failures), before - after);
	return 0;
}
