/* Threads of one process use the driver at once. */
#include "check.h"

#include <pthread.h>

enum { THREADS = 8, ROUNDS = 200 };

static CUcontext shared;

static void together(void *(*work)(void *number))
{
	pthread_t threads[THREADS];

	shared = begin();
	kernel("spin"); /* the helper keeps the module without a lock */
	for (intptr_t i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)i), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void *allocate(void *number)
{
	CUdeviceptr small;
	CUdeviceptr large;

	OK(cuCtxSetCurrent(shared));
	for (int i = 0; i < ROUNDS; i++) {
		OK(cuMemAlloc_v2(&small, 1000));
		OK(cuMemAlloc_v2(&large, (size_t)(3 + (intptr_t)number) * MIB));
		OK(cuMemsetD8Async(small, 1, 1000, CU_STREAM_PER_THREAD));
		OK(cuMemFree_v2(small));
		OK(cuMemFree_v2(large));
	}
	return NULL;
}

static void threads_allocate_and_free_at_once(void)
{
	size_t before;

	begin();
	before = free_bytes();
	together(allocate);
	CHECK_EQUAL(free_bytes(), before);
}

static void *compute(void *number)
{
	CUstream mine;
	CUevent end;

	(void)number;
	OK(cuCtxSetCurrent(shared));
	for (int i = 0; i < ROUNDS / 10; i++) {
		OK(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING));
		OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
		spin(mine, 20000);
		spin(CU_STREAM_PER_THREAD, 20000);
		OK(cuEventRecord(end, mine));
		OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, end, 0));
		OK(cuEventSynchronize(end));
		OK(cuStreamDestroy_v2(mine));
		OK(cuEventDestroy_v2(end));
		if (i % 5 == 0)
			OK(cuCtxSynchronize());
	}
	return NULL;
}

static void threads_compute_and_synchronise_at_once(void)
{
	together(compute);
	OK(cuCtxSynchronize());
}

static void *make_context(void *number)
{
	CUcontext own;
	CUdeviceptr address;

	(void)number;
	for (int i = 0; i < 10; i++) {
		OK(cuCtxCreate_v2(&own, 0, 0));
		OK(cuMemAlloc_v2(&address, MIB));
		spin(NULL, 1000);
		OK(cuCtxDestroy_v2(own));
	}
	return NULL;
}

static void threads_make_contexts_of_their_own(void)
{
	size_t before;

	begin();
	before = free_bytes();
	together(make_context);
	CHECK_EQUAL(free_bytes(), before);
}

CASES(CASE(threads_allocate_and_free_at_once), CASE(threads_compute_and_synchronise_at_once),
      CASE(threads_make_contexts_of_their_own));
