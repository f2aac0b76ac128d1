/*
 * Threads that work in the primary context and leave it, every second one after each
 * round, so that the last user goes while others come. Then one user stays. Prints
 * how often something failed, and what the slice shows as used, in MiB.
 *
 *	users THREADS ROUNDS
 */
#include "call.h"
#include "spin.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 16 };

static void *driver;
static int rounds;

static CUresult work(int round)
{
	uint64_t duration_ns = 20000;
	void *parameters[] = {&duration_ns};
	CUdeviceptr pieces[8];
	CUfunction spin;
	CUmodule module;
	CUresult result = CALL(cuModuleLoadData, &module, spin_image);

	if (!result)
		result = CALL(cuModuleGetFunction, &spin, module, "spin");
	for (int i = 0; !result && i < 8; i++)
		result = CALL(cuMemAlloc_v2, &pieces[i], (size_t)(round * 7 + i + 1) << 12);
	for (int i = 0; !result && i < 4; i++)
		result = CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	for (int i = 0; !result && i < 8; i++)
		result = CALL(cuMemFree_v2, pieces[i]);
	if (!result)
		result = CALL(cuCtxSynchronize, );
	return result ? result : CALL(cuModuleUnload, module);
}

static CUresult come(void)
{
	CUcontext context;
	const CUresult result = CALL(cuDevicePrimaryCtxRetain, &context, 0);

	return result ? result : CALL(cuCtxSetCurrent, context);
}

static void *come_and_go(void *stays)
{
	unsigned long failures = stays && come();

	for (int i = 0; i < rounds; i++)
		if ((!stays && come()) || work(i) ||
		    (!stays && CALL(cuDevicePrimaryCtxRelease_v2, 0)))
			failures++;
	if (stays && CALL(cuDevicePrimaryCtxRelease_v2, 0))
		failures++;
	return (void *)failures;
}

int main(int count, char **words)
{
	pthread_t threads[MOST_THREADS];
	const int many = count > 1 ? atoi(words[1]) : 1;
	unsigned long failures = 0;
	size_t free_bytes, total_bytes;

	rounds = count > 2 ? atoi(words[2]) : 1;
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || many > MOST_THREADS || CALL(cuInit, 0))
		return 2;
	for (int i = 0; i < many; i++)
		pthread_create(&threads[i], NULL, come_and_go, i % 2 ? NULL : &rounds);
	for (int i = 0; i < many; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		failures += (unsigned long)failed;
	}
	if (come() || CALL(cuMemGetInfo_v2, &free_bytes, &total_bytes))
		return 2;
	printf("%lu %zu\n", failures, (total_bytes - free_bytes) >> 20);
	return 0;
}
