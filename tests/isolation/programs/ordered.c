/*
 * Two threads launch on one stream. While the library has set an event behind the first one's kernel, and not
 * noted it yet (a pause point), the second one launches behind a wait for the program; then the first
 * one's kernel is waited for.
 *
 *	ordered UNIT_NS PAUSEFILE	prints the result
 */
#include "place.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEARNING = 32, OTHER_BLOCKS = 4 };

static struct place place;
static CUevent event;
static CUdeviceptr word;

/* A kernel of another kind: it is measured, with an event in front of it and one behind. */
static CUresult launch_other(unsigned blocks)
{
	return CALL(cuLaunchKernel, place.spin, blocks, 1, 1, 1, 1, 1, 0, place.stream,
		    place.parameters, NULL);
}

static CUresult prepare(void)
{
	CUresult result = make_place(&place, 0, 1000);

	for (int i = 0; !result && i < LEARNING; i++) {
		result = launch(&place);
		if (!result)
			result = CALL(cuStreamSynchronize, place.stream);
	}
	if (!result)
		result = CALL(cuEventCreate, &event, CU_EVENT_DEFAULT);
	if (!result)
		result = CALL(cuMemAlloc_v2, &word, 4);
	return result ? result : CALL(cuMemsetD32_v2, word, 0, 1);
}

static void *launch_first(void *result)
{
	*(CUresult *)result = CALL(cuCtxSetCurrent, place.context);
	if (!*(CUresult *)result)
		*(CUresult *)result = launch_other(OTHER_BLOCKS);
	return NULL;
}

static void await_pause(const char *file)
{
	while (access(file, F_OK))
		sched_yield();
}

int main(int count, char **words)
{
	CUresult first = CUDA_SUCCESS;
	pthread_t thread;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 3 || !driver || CALL(cuInit, 0) || prepare())
		return 2;
	place.duration_ns = strtoull(words[1], NULL, 10);
	setenv("GPUSLICE_PAUSEPOINT", "event_set", 1);
	pthread_create(&thread, NULL, launch_first, &first);
	await_pause(words[2]); /* in front of the kernel */
	unlink(words[2]);
	await_pause(words[2]); /* behind it */
	unsetenv("GPUSLICE_PAUSEPOINT");
	CUresult result = CALL(cuEventRecord, event, place.stream);

	if (!result)
		result = CALL(cuStreamWaitValue32_v2, place.stream, word, 1,
			      CU_STREAM_WAIT_VALUE_GEQ);
	if (!result)
		result = launch_other(OTHER_BLOCKS * OTHER_BLOCKS);
	unlink(words[2]);
	pthread_join(thread, NULL);
	if (!result)
		result = CALL(cuEventSynchronize, event);
	printf("%d\n", first ? first : result);
	fflush(stdout);
	_exit(0);
}
