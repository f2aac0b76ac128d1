/*
 * Times driver calls from inside a program, in nanoseconds.
 *
 *	bench init            cuInit alone
 *	bench launch COUNT    cuLaunchKernel, median over batches of 200, and p99
 *	bench alloc COUNT     cuMemAlloc median and p99, cuMemFree median
 *	bench empty COUNT     a driver call that nobody stands in for: the clock's own cost
 */
#include "spin.h"

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 200 };

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

static int time_launches(size_t count)
{
	__typeof__(cuLaunchKernel) *launch = FIND(cuLaunchKernel);
	__typeof__(cuCtxSynchronize) *wait = FIND(cuCtxSynchronize);
	uint64_t *times = calloc(count / BATCH + 1, sizeof(*times));
	uint64_t duration_ns = 100;
	void *parameters[] = {&duration_ns};
	CUmodule module;
	CUfunction spin;
	size_t batches = 0;

	if (!times || FIND(cuModuleLoadData)(&module, spin_image) ||
	    FIND(cuModuleGetFunction)(&spin, module, "spin"))
		return 3;
	for (; batches < count / BATCH; batches++) {
		const uint64_t begin = now_ns();

		for (int i = 0; i < BATCH; i++)
			launch(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
		times[batches] = (now_ns() - begin) / BATCH;
		wait();
	}
	printf("%llu %llu\n", (unsigned long long)quantile(times, batches, 0.5),
	       (unsigned long long)quantile(times, batches, 0.99));
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
		return time_launches(strtoull(words[2], NULL, 10));
	return time_allocations(strtoull(words[2], NULL, 10));
}
