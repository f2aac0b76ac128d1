/*
 *	inside pool       allocates inside a pool that has room, until it is killed
 *	inside linear N   asks N times for all that is free but for a little; prints refusals
 *
 * The first one prints a line when it has begun.
 */
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (1ull << 20)

static void *driver;

static CUresult keep_all(void)
{
	cuuint64_t all = ~0ull;
	CUmemoryPool pool;
	CUresult result = CALL(cuDeviceGetDefaultMemPool, &pool, 0);

	return result ? result
		      : CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
}

static CUresult allocate_inside(void)
{
	CUdeviceptr pointer;
	CUresult result = CALL(cuMemAllocAsync, &pointer, PIECE_BYTES, NULL);

	return result ? result : CALL(cuMemFreeAsync, pointer, NULL);
}

static int stay_inside(void)
{
	CUresult result = keep_all();

	if (!result)
		result = allocate_inside();
	printf("%d\n", result);
	fflush(stdout);
	while (!result)
		result = allocate_inside();
	return 1;
}

/* `room_bytes` stay free: less than a pool grows by, and more than is asked for. */
static int ask(int count, size_t room_bytes)
{
	size_t free_bytes, total_bytes;
	CUdeviceptr pointer;
	int refused = 0;

	if (CALL(cuMemGetInfo_v2, &free_bytes, &total_bytes) ||
	    CALL(cuMemAlloc_v2, &pointer, free_bytes - room_bytes))
		return 1;
	for (int i = 0; i < count; i++) {
		if (CALL(cuMemAlloc_v2, &pointer, room_bytes - PIECE_BYTES))
			refused++;
		else
			CALL(cuMemFree_v2, pointer);
	}
	printf("%d\n", refused);
	return 0;
}

int main(int count, char **words)
{
	CUcontext context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 2 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 2;
	return strcmp(words[1], "pool") ? ask(count > 2 ? atoi(words[2]) : 1, 20 * PIECE_BYTES)
					: stay_inside();
}
