/*
 * What NCCL does while a framework records a graph: a thread without a context
 * makes, maps and frees physical memory of card 1, again and again, while the
 * main thread records on card 0 in global mode. Prints the results of the
 * thread, of its last request, which is for too much, and of the capture's end.
 *
 *	nccl TOO_MUCH_BYTES
 */
#include "call.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 50, PIECE = 64 << 20 };

static void *driver;
static size_t too_much;
static CUresult refused;

static const CUmemAllocationProp on_card_1 = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};

static CUresult turn(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	CUresult result = CALL(cuMemCreate, &handle, PIECE, &on_card_1, 0);

	if (!result)
		result = CALL(cuMemAddressReserve, &address, PIECE, 0, 0, 0);
	if (!result)
		result = CALL(cuMemMap, address, PIECE, 0, handle, 0);
	if (!result)
		result = CALL(cuMemRelease, handle);
	if (!result)
		result = CALL(cuMemUnmap, address, PIECE);
	return result ? result : CALL(cuMemAddressFree, address, PIECE);
}

static void *without_context(void *argument)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; !result && i < TURNS; i++)
		result = turn();
	refused = CALL(cuMemCreate, &handle, too_much, &on_card_1, 0);
	*(CUresult *)argument = result;
	return NULL;
}

int main(int count, char **words)
{
	CUcontext context;
	CUstream recording;
	CUgraph graph;
	pthread_t thread;
	CUresult done = CUDA_ERROR_UNKNOWN;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	too_much = count > 1 ? strtoull(words[1], NULL, 10) : 0;
	if (!driver || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
	    CALL(cuCtxSetCurrent, context) ||
	    CALL(cuStreamCreate, &recording, CU_STREAM_NON_BLOCKING) ||
	    CALL(cuStreamBeginCapture_v2, recording, CU_STREAM_CAPTURE_MODE_GLOBAL))
		return 2;
	pthread_create(&thread, NULL, without_context, &done);
	pthread_join(thread, NULL);
	printf("%d %d %d\n", done, refused, CALL(cuStreamEndCapture, recording, &graph));
	return 0;
}
