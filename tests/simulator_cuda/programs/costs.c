/*
 * What the settings of costs say that calls take. Prints one number.
 *
 *	costs event     nanoseconds between two events around a kernel of 10 us
 *	costs launch    nanoseconds of a launch, in stepped time
 *	costs record    the same for a record
 *	costs submit    what a kernel of 10 us takes from the end of its launch on
 *	costs stand     nanoseconds after which a thread goes on that waits for
 *			20 ms at 30 of 100 ms
 *	costs loading   1 if nothing is at work when the first launch of a module
 *			has returned
 *	costs queue     1 if another thread's call had to wait for one that
 *			waited for room
 */
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call)                                                                                   \
	do {                                                                                       \
		if ((call) != CUDA_SUCCESS) {                                                      \
			fprintf(stderr, "%d: %s\n", __LINE__, #call);                              \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
			    ".visible .entry spin_1000(){ret;}\n"
			    ".visible .entry spin_10(){ret;}\n";
static CUcontext context;
static volatile int is_blocked;

static CUfunction kernel_of(const char *name)
{
	CUfunction function;
	CUmodule module;

	OK(cuModuleLoadData(&module, image));
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

static void launch(CUfunction function)
{
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void wait_until_queued(void *argument)
{
	while (!atomic_load((atomic_int *)argument))
		usleep(100);
}

/* The stream waits for the host, so a host that is interrupted is not measured. */
static long event(void)
{
	static atomic_int is_queued;
	CUfunction work = kernel_of("spin_1000"), measured = kernel_of("spin_10");
	CUevent start, end;
	float milliseconds;

	OK(cuEventCreate(&start, 0));
	OK(cuEventCreate(&end, 0));
	OK(cuLaunchHostFunc(NULL, wait_until_queued, &is_queued));
	launch(work);
	OK(cuEventRecord(start, NULL));
	launch(measured);
	OK(cuEventRecord(end, NULL));
	atomic_store(&is_queued, 1);
	OK(cuEventSynchronize(end));
	OK(cuEventElapsedTime(&milliseconds, start, end));
	return (long)(milliseconds * 1e6f + 0.5f);
}

static long loading(void)
{
	CUfunction work = kernel_of("spin_1000"), other = kernel_of("spin_10");
	CUstream streams[2];

	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 100; i++)
		OK(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, streams[0], NULL, NULL));
	OK(cuLaunchKernel(other, 1, 1, 1, 1, 1, 1, 0, streams[1], NULL, NULL));
	return cuStreamQuery(streams[0]) == CUDA_SUCCESS;
}

/* A host function of ten minutes keeps the queue full: who is in it waits for
 * as long. */
static void stand_still(void *argument)
{
	(void)argument;
	is_blocked = 1;
	sleep(600);
}

static void *fill(void *argument)
{
	const CUfunction work = argument;

	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 3000; i++)
		launch(work);
	return argument;
}

static void *ask(void *answered)
{
	size_t free_bytes, total_bytes;

	OK(cuCtxSetCurrent(context));
	OK(cuMemGetInfo(&free_bytes, &total_bytes));
	*(volatile int *)answered = 1;
	return NULL;
}

int gpusim_step_together(unsigned count);
void gpusim_step_apart(void);
void gpusim_spin_ns(uint64_t ns);
uint64_t gpusim_now_ns(void);

static long in_steps(const char *what)
{
	CUfunction measured = kernel_of("spin_10");
	CUevent end;
	uint64_t times[3];

	OK(cuEventCreate(&end, 0));
	launch(measured);
	OK(cuCtxSynchronize());
	gpusim_step_together(1);
	gpusim_spin_ns(130000000 - gpusim_now_ns() % 100000000);
	times[0] = gpusim_now_ns();
	if (!strcmp(what, "stand"))
		gpusim_spin_ns(20000000);
	else if (!strcmp(what, "record"))
		OK(cuEventRecord(end, NULL));
	else
		launch(measured);
	times[1] = gpusim_now_ns();
	OK(cuCtxSynchronize());
	times[2] = gpusim_now_ns();
	gpusim_step_apart();
	return (long)(!strcmp(what, "submit") ? times[2] - times[1] : times[1] - times[0]);
}

static long queue(void)
{
	static volatile int answered;
	CUfunction work = kernel_of("spin_1000");
	pthread_t filler, asker;

	OK(cuLaunchHostFunc(NULL, stand_still, NULL));
	pthread_create(&filler, NULL, fill, work);
	while (!is_blocked)
		usleep(1000);
	pthread_create(&asker, NULL, ask, (void *)&answered);
	for (int i = 0; i < 300 && !answered; i++)
		usleep(1000);
	return !answered;
}

int main(int count, char **words)
{
	long (*way)(void) = count < 2                      ? NULL
			    : !strcmp(words[1], "event")   ? event
			    : !strcmp(words[1], "loading") ? loading
			    : !strcmp(words[1], "queue")   ? queue
							   : NULL;

	if (count < 2)
		return 2;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	printf("%ld\n", way ? way() : in_steps(words[1]));
	fflush(stdout);
	_exit(0);
}
