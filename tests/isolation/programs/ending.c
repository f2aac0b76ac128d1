/*
 * A context is asked to end while a launch in it waits for credit; the driver refuses, as it is a primary
 * one. Prints the result of the launch, and how often the library gave the processor up meanwhile without a
 * rest, in the thread that asks.
 */
#include "call.h"
#include "spin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static void *driver;
static CUcontext context;
static CUfunction spin;
static atomic_bool is_in_debt;
static __thread unsigned long yields;

int sched_yield(void)
{
	yields++;
	return 0;
}

static CUresult launch(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

static void *launch_in_debt(void *answer)
{
	CUresult result = CALL(cuCtxSetCurrent, context);

	if (!result)
		result = launch(50000000);
	if (!result)
		result = CALL(cuCtxSynchronize);
	atomic_store(&is_in_debt, true);
	*(CUresult *)answer = result ? result : launch(1000);
	return NULL;
}

int main(void)
{
	const struct timespec pause = {.tv_nsec = 50000000};
	CUmodule module;
	CUresult result = CUDA_SUCCESS;
	pthread_t thread;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
	    CALL(cuCtxSetCurrent, context) || CALL(cuModuleLoadData, &module, spin_image) ||
	    CALL(cuModuleGetFunction, &spin, module, "spin"))
		return 2;
	pthread_create(&thread, NULL, launch_in_debt, &result);
	while (!atomic_load(&is_in_debt))
		nanosleep(&pause, NULL);
	nanosleep(&pause, NULL);
	CALL(cuCtxDestroy_v2, context);
	const unsigned long counted = yields;

	pthread_join(thread, NULL);
	printf("%d %lu\n", result, counted);
	return 0;
}
