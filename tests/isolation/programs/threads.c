/*
 * Threads that allocate and free while the main thread forks children, some of
 * which use CUDA themselves and are refused by the driver. With a number of bytes it
 * also loads code and allocates and frees that many, while the threads are at work.
 *
 *	threads <threads> <forks> [<bytes>]   prints failures, the free bytes before and after
 */
#include "call.h"
#include "spin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *driver;
static CUcontext context;
static atomic_bool is_over;
static atomic_int failures;

static void *work(void *argument)
{
	CALL(cuCtxSetCurrent, context);
	while (!atomic_load(&is_over)) {
		CUdeviceptr pointer;

		if (CALL(cuMemAlloc_v2, &pointer, 4096) || CALL(cuMemFree_v2, pointer))
			atomic_fetch_add(&failures, 1);
	}
	return argument;
}

static CUresult load_and_take(size_t bytes)
{
	CUdeviceptr pointer;
	CUmodule module;
	CUresult result = CALL(cuModuleLoadData, &module, spin_image);

	if (!result)
		result = CALL(cuMemAlloc_v2, &pointer, bytes);
	return result ? result : CALL(cuMemFree_v2, pointer);
}

int main(int count, char **words)
{
	size_t before = 0, after = 0, total;
	pthread_t threads[64];

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 3 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 2;
	CALL(cuMemGetInfo_v2, &before, &total);
	for (int i = 0; i < atoi(words[1]); i++)
		pthread_create(&threads[i], NULL, work, NULL);
	for (int i = 0; i < atoi(words[2]); i++) {
		int status = -1;
		const pid_t child = fork();

		if (child == 0) {
			CUdeviceptr pointer;

			if (i % 2)
				_exit(CALL(cuMemAlloc_v2, &pointer, 4096) == CUDA_SUCCESS);
			execl("/bin/true", "true", (char *)NULL);
			_exit(9);
		}
		waitpid(child, &status, 0);
		if (status)
			atomic_fetch_add(&failures, 1);
	}
	if (count > 3 && load_and_take(strtoull(words[3], NULL, 10)))
		atomic_fetch_add(&failures, 1);
	atomic_store(&is_over, true);
	for (int i = 0; i < atoi(words[1]); i++)
		pthread_join(threads[i], NULL);
	CALL(cuMemGetInfo_v2, &after, &total);
	printf("%d %zu %zu\n", atomic_load(&failures), before, after);
	return 0;
}
