/*
 * Threads that create physical memory, map it, and let go of the handle and the mapping
 * in either order, so that one's last mapping ends while another creates.
 *
 *	mapped <threads> <rounds>   prints failures, and how much less is free at the end
 */
#include "call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE_BYTES (2ull << 20)

enum { MOST_THREADS = 16, MOST_PAGES = 16 };

static void *driver;
static int rounds;
static atomic_int failures;

static CUresult map_once(CUdeviceptr address, unsigned *seed)
{
	const CUmemAllocationProp property = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	const size_t bytes = ((unsigned)rand_r(seed) % MOST_PAGES + 1) * PAGE_BYTES;
	const int is_released_first = rand_r(seed) % 2;
	CUmemGenericAllocationHandle handle;
	CUresult result = CALL(cuMemCreate, &handle, bytes, &property, 0);

	if (!result)
		result = CALL(cuMemMap, address, bytes, 0, handle, 0);
	if (!result && is_released_first)
		result = CALL(cuMemRelease, handle);
	if (!result)
		result = CALL(cuMemUnmap, address, bytes);
	if (!result && !is_released_first)
		result = CALL(cuMemRelease, handle);
	return result;
}

static void *work(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	CUdeviceptr address;

	if (CALL(cuMemAddressReserve, &address, MOST_PAGES * PAGE_BYTES, 0, 0, 0))
		atomic_fetch_add(&failures, 1);
	else
		for (int i = 0; i < rounds; i++)
			if (map_once(address, &seed))
				atomic_fetch_add(&failures, 1);
	return NULL;
}

int main(int count, char **words)
{
	size_t before = 0, after = 0, total;
	pthread_t threads[MOST_THREADS];
	CUcontext context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 3 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 2;
	const int workers = atoi(words[1]) % (MOST_THREADS + 1);

	rounds = atoi(words[2]);
	CALL(cuMemGetInfo_v2, &before, &total);
	for (int i = 0; i < workers; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < workers; i++)
		pthread_join(threads[i], NULL);
	CALL(cuMemGetInfo_v2, &after, &total);
	printf("%d %zu\n", atomic_load(&failures), before - after);
	return 0;
}
