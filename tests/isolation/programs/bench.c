/*
 * Times driver calls from inside a program, in nanoseconds.
 *
 *	bench init            cuInit alone
 *	bench launch COUNT [THREADS [KINDS]]	cuLaunchKernel, median over batches of 200, and p99;
 *		each thread launches on a stream of its own, one size of grid or several in turn
 *	bench alloc COUNT	cuMemAlloc median and p99, cuMemFree median
 */
#include "spin.h"

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 200, MOST_THREADS = 16 };

static void *driver;

#define FIND(name) ((__typeof__(name) *)dlsym(driver, #name))

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *left, const void *right)
{
	const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

static uint64_t quantile(uint64_t *values, size_t count, double part)
{
	qsort(values, count, sizeof(*values), compare);
	return values[(size_t)((double)(count - 1) * part)];
}

struct launcher {
	pthread_t thread;
	unsigned kinds;
	uint64_t *times;
	size_t batches;
};

static void *launch_batches(void *argument)
{
	const struct launcher *self = argument;
	__typeof__(cuLaunchKernel) *launch = FIND(cuLaunchKernel);
	__typeof__(cuStreamSynchronize) *wait = FIND(cuStreamSynchronize);
	uint64_t duration_ns = 100;
	void *parameters[] = {&duration_ns};
	CUcontext context;
	CUmodule module;
	CUfunction spin;
	CUstream stream;

	if (FIND(cuDevicePrimaryCtxRetain)(&context, 0) || FIND(cuCtxSetCurrent)(context) ||
	    FIND(cuModuleLoadData)(&module, spin_image) ||
	    FIND(cuModuleGetFunction)(&spin, module, "spin") || FIND(cuStreamCreate)(&stream, 0))
		exit(3);
	for (size_t batch = 0; batch < self->batches; batch++) {
		const uint64_t begin = now_ns();

		for (unsigned i = 0; i < BATCH; i++)
			launch(spin, 1u << i % self->kinds, 1, 1, 1, 1, 1, 0, stream, parameters,
			       NULL);
		self->times[batch] = (now_ns() - begin) / BATCH;
		wait(stream);
	}
	return NULL;
}

static int time_launches(size_t count, size_t threads, unsigned kinds)
{
	const size_t batches = count / BATCH;
	struct launcher launchers[MOST_THREADS];
	uint64_t *times = calloc(threads * batches + 1, sizeof(*times));

	if (!times || threads > MOST_THREADS)
		return 3;
	for (size_t i = 0; i < threads; i++) {
		launchers[i] = (struct launcher){
			.kinds = kinds, .times = times + i * batches, .batches = batches};
		if (pthread_create(&launchers[i].thread, NULL, launch_batches, &launchers[i]))
			return 3;
	}
	for (size_t i = 0; i < threads; i++)
		pthread_join(launchers[i].thread, NULL);
	printf("%llu %llu\n", (unsigned long long)quantile(times, threads * batches, 0.5),
	       (unsigned long long)quantile(times, threads * batches, 0.99));
	return 0;
}

static int time_allocations(size_t count)
{
	__typeof__(cuMemAlloc_v2) *allocate = FIND(cuMemAlloc_v2);
	__typeof__(cuMemFree_v2) *release = FIND(cuMemFree_v2);
	uint64_t *allocations = calloc(count, sizeof(*allocations));
	uint64_t *frees = calloc(count, sizeof(*frees));

	if (!allocations || !frees)
		return 3;
	for (size_t i = 0; i < count; i++) {
		CUdeviceptr pointer;
		const uint64_t begin = now_ns();

		if (allocate(&pointer, 1 << 20))
			return 4;
		const uint64_t middle = now_ns();

		release(pointer);
		allocations[i] = middle - begin;
		frees[i] = now_ns() - middle;
	}
	printf("%llu %llu %llu\n", (unsigned long long)quantile(allocations, count, 0.5),
	       (unsigned long long)quantile(allocations, count, 0.99),
	       (unsigned long long)quantile(frees, count, 0.5));
	return 0;
}

int main(int count, char **words)
{
	CUcontext context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 2 || !driver)
		return 2;
	__typeof__(cuInit) *start = FIND(cuInit);
	const uint64_t begin = now_ns();

	if (start(0))
		return 2;
	const uint64_t end = now_ns();

	if (!strcmp(words[1], "init")) {
		printf("%llu\n", (unsigned long long)(end - begin));
		return 0;
	}
	if (FIND(cuDevicePrimaryCtxRetain)(&context, 0) || FIND(cuCtxSetCurrent)(context))
		return 2;
	if (!strcmp(words[1], "launch"))
		return time_launches(strtoull(words[2], NULL, 10),
				     count > 3 ? strtoull(words[3], NULL, 10) : 1,
				     count > 4 ? (unsigned)atoi(words[4]) : 1);
	return time_allocations(strtoull(words[2], NULL, 10));
}
