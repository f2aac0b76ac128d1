/*
 * One thread launches functions that were never launched, each with a module of its
 * own that comes with its first launch, while others, or other processes, allocate
 * and free, or with 0 bytes make contexts and end them.
 *
 *	throng threads|processes <count> <functions> <bytes>
 *		prints failures, and how much less is free at the end
 */
#include "call.h"
#include "spin.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 64

/* Of all processes. */
static struct common {
	atomic_int failures;
	atomic_int ready;
	atomic_bool may_begin;
	atomic_bool is_over;
	atomic_int idle;
} *common;
static void *driver;
static CUcontext context;
static size_t bytes;

static void wait_for(const atomic_int *number, int value)
{
	while (atomic_load(number) < value)
		sched_yield();
}

static CUresult take_and_give(void)
{
	CUdeviceptr pointer;
	const CUresult result = CALL(cuMemAlloc_v2, &pointer, bytes);

	return result ? result : CALL(cuMemFree_v2, pointer);
}

static CUresult make_and_end(void)
{
	CUcontext other;
	const CUresult result = CALL(cuCtxCreate_v2, &other, 0, 0);

	return result ? result : CALL(cuCtxDestroy_v2, other);
}

/* Here, and not where a thread is joined or a process waited for: its context
 * still stands. */
static void *work(void *argument)
{
	CALL(cuCtxSetCurrent, context);
	atomic_fetch_add(&common->ready, 1);
	while (!atomic_load(&common->may_begin))
		sched_yield();
	while (!atomic_load(&common->is_over))
		if (bytes ? take_and_give() : make_and_end())
			atomic_fetch_add(&common->failures, 1);
	atomic_fetch_add(&common->idle, 1);
	return argument;
}

static bool start_driver(void)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	return driver && !CALL(cuInit, 0) && !CALL(cuDevicePrimaryCtxRetain, &context, 0) &&
	       !CALL(cuCtxSetCurrent, context);
}

static void begin_worker(bool is_process)
{
	pthread_t thread;

	if (!is_process) {
		pthread_create(&thread, NULL, work, NULL);
		pthread_detach(thread);
		return;
	}
	if (fork())
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!start_driver())
		atomic_fetch_add(&common->failures, 1);
	work(NULL);
	for (;;)
		pause();
}

static CUresult launch_new(void)
{
	uint64_t duration_ns = 100;
	void *parameters[] = {&duration_ns};
	CUmodule module;
	CUfunction spin;
	CUresult result = CALL(cuModuleLoadData, &module, spin_image);

	if (!result)
		result = CALL(cuModuleGetFunction, &spin, module, "spin");
	if (!result)
		result = CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
	return result;
}

int main(int count, char **words)
{
	size_t before = 0, after = 0, total;

	common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (count != 5 || common == MAP_FAILED)
		return 2;
	const bool are_processes = !strcmp(words[1], "processes");
	const int workers = atoi(words[2]) % MOST;

	bytes = strtoull(words[4], NULL, 10);
	/* None may be forked from a process that has begun with the driver. */
	for (int i = 0; are_processes && i < workers; i++)
		begin_worker(true);
	if (!start_driver())
		return 2;
	for (int i = 0; !are_processes && i < workers; i++)
		begin_worker(false);
	wait_for(&common->ready, workers);
	CALL(cuMemGetInfo_v2, &before, &total);
	atomic_store(&common->may_begin, true);
	for (int i = 0; i < atoi(words[3]); i++)
		if (launch_new())
			atomic_fetch_add(&common->failures, 1);
	atomic_store(&common->is_over, true);
	wait_for(&common->idle, workers);
	CALL(cuMemGetInfo_v2, &after, &total);
	printf("%d %zu\n", atomic_load(&common->failures), before - after);
	return 0;
}
