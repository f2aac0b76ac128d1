/*
 * Threads that ask for memory in every way there is, at random, and give it back.
 *
 *	mixed <threads> <steps> <seed>
 *		prints a line once it has a context and waits for one; then prints calls that were
 *		given, refused, and that failed otherwise, and by how many bytes less are free;
 *		ends with its input
 */
#include "call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1024ull * 1024)
#define PAGE (2 * MIB)

enum { HELD = 16, MOST_THREADS = 16 };

enum kind {
	NOTHING,
	LINEAR,
	MANAGED,
	PITCHED,
	PHYSICAL,
	POOLED,
	ENDED_POOL, /* from a pool that is destroyed at once, or with it */
	ARRAY,
	MIPMAP,
	GRAPH,
	KINDS
};

struct piece {
	enum kind kind;
	uint64_t object, address;
};

static void *driver;
static CUcontext context;
static CUmemoryPool common;
static atomic_int given, refused, failed;
static int steps;
static unsigned seed;

static const CUmemPoolProps on_card = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static CUresult take_physical(struct piece *piece, uint64_t bytes, unsigned *state)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	const uint64_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	CUresult result = CALL(cuMemCreate, &handle, whole, &prop, 0);

	piece->object = result ? 0 : handle;
	piece->address = 0;
	if (result || rand_r(state) % 2)
		return result;
	result = CALL(cuMemAddressReserve, &address, whole, 0, 0, 0);
	if (!result)
		result = CALL(cuMemMap, address, whole, 0, handle, 0);
	if (!result && rand_r(state) % 2) {
		result = CALL(cuMemRelease, handle);
		piece->object = 0;
	}
	piece->address = address;
	return result;
}

static CUresult take_from_new_pool(struct piece *piece, uint64_t bytes, unsigned *state)
{
	CUmemoryPool pool;
	CUdeviceptr pointer = 0;
	CUresult result = CALL(cuMemPoolCreate, &pool, &on_card);

	if (result)
		return result;
	result = CALL(cuMemAllocFromPoolAsync, &pointer, bytes, pool, NULL);
	*piece = (struct piece){piece->kind, (uint64_t)(uintptr_t)pool, pointer};
	if (result || rand_r(state) % 2) {
		CALL(cuMemPoolDestroy, pool);
		piece->object = 0;
	}
	return result;
}

static CUresult take_array(struct piece *piece, uint64_t bytes)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = bytes / 1024,
					       .Height = 1024,
					       .Format = CU_AD_FORMAT_UNSIGNED_INT8,
					       .NumChannels = 1};

	if (piece->kind == ARRAY)
		return CALL(cuArray3DCreate_v2, (CUarray *)&piece->object, &shape);
	return CALL(cuMipmappedArrayCreate, (CUmipmappedArray *)&piece->object, &shape, 3);
}

static CUresult take_graph(struct piece *piece, uint64_t bytes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = on_card, .bytesize = bytes};
	CUgraph graph;
	CUgraphNode node, freeing;
	CUgraphExec exec;
	CUresult result = CALL(cuGraphCreate, &graph, 0);

	if (!result)
		result = CALL(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &parameters);
	if (!result)
		result = CALL(cuGraphAddMemFreeNode, &freeing, graph, &node, 1, parameters.dptr);
	if (!result)
		result = CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
	if (result)
		return result;
	piece->object = (uint64_t)(uintptr_t)exec;
	result = CALL(cuGraphLaunch, exec, NULL);
	if (result)
		CALL(cuGraphExecDestroy, exec);
	return result;
}

static CUresult take(struct piece *piece, uint64_t bytes, unsigned *state)
{
	CUdeviceptr *pointer = (CUdeviceptr *)&piece->address;
	size_t pitch;

	switch (piece->kind) {
	case LINEAR:
		return CALL(cuMemAlloc_v2, pointer, bytes);
	case MANAGED:
		return CALL(cuMemAllocManaged, pointer, bytes, CU_MEM_ATTACH_GLOBAL);
	case PITCHED:
		return CALL(cuMemAllocPitch_v2, pointer, &pitch, bytes / 1024, 1024, 4);
	case PHYSICAL:
		return take_physical(piece, bytes, state);
	case POOLED:
		return rand_r(state) % 2
			       ? CALL(cuMemAllocAsync, pointer, bytes, NULL)
			       : CALL(cuMemAllocFromPoolAsync, pointer, bytes, common, NULL);
	case ENDED_POOL:
		return take_from_new_pool(piece, bytes, state);
	case GRAPH:
		return take_graph(piece, bytes);
	default:
		return take_array(piece, bytes);
	}
}

static CUresult give_physical(const struct piece *piece)
{
	CUdeviceptr base;
	size_t bytes = 0;
	CUresult result = CUDA_SUCCESS;

	if (piece->address)
		result = CALL(cuMemGetAddressRange_v2, &base, &bytes, piece->address);
	if (!result && piece->address)
		result = CALL(cuMemUnmap, piece->address, bytes);
	if (!result && piece->object)
		result = CALL(cuMemRelease, piece->object);
	return result;
}

static CUresult give(const struct piece *piece, unsigned *state)
{
	void *object = (void *)(uintptr_t)piece->object;
	CUresult result;

	switch (piece->kind) {
	case PHYSICAL:
		return give_physical(piece);
	case ENDED_POOL:
		result = CALL(cuMemFreeAsync, piece->address, NULL);
		return result || !object ? result : CALL(cuMemPoolDestroy, (CUmemoryPool)object);
	case ARRAY:
		return CALL(cuArrayDestroy, (CUarray)object);
	case MIPMAP:
		return CALL(cuMipmappedArrayDestroy, (CUmipmappedArray)object);
	case GRAPH:
		return CALL(cuGraphExecDestroy, (CUgraphExec)object);
	case LINEAR:
	case POOLED:
		if (rand_r(state) % 2)
			return CALL(cuMemFreeAsync, piece->address, NULL);
		/* fallthrough */
	default:
		return CALL(cuMemFree_v2, piece->address);
	}
}

static void count(CUresult result)
{
	if (result && result != CUDA_ERROR_OUT_OF_MEMORY)
		fprintf(stderr, "a call answers %d\n", result);
	atomic_fetch_add(!result			      ? &given
			 : result == CUDA_ERROR_OUT_OF_MEMORY ? &refused
							      : &failed,
			 1);
}

/* What lets books and driver move between the calls. */
static void move_on(unsigned *state)
{
	size_t free_bytes, total;

	switch (rand_r(state) % 24) {
	case 0:
		CALL(cuCtxSynchronize);
		break;
	case 1:
		CALL(cuMemGetInfo_v2, &free_bytes, &total);
		break;
	case 2:
		CALL(cuMemPoolTrimTo, common, 0);
		break;
	case 3:
		CALL(cuDeviceGraphMemTrim, 0);
		break;
	default:
		break;
	}
}

static void *work(void *argument)
{
	unsigned state = seed * MOST_THREADS + (unsigned)(intptr_t)argument;
	struct piece pieces[HELD] = {0};

	CALL(cuCtxSetCurrent, context);
	for (int i = 0; i < steps + HELD; i++) {
		struct piece *piece = &pieces[i < steps ? rand_r(&state) % HELD : i - steps];
		const uint64_t bytes = (14 + (uint64_t)rand_r(&state) % 24) * MIB;

		move_on(&state);
		if (piece->kind) {
			if (give(piece, &state))
				atomic_fetch_add(&failed, 1);
			*piece = (struct piece){0};
		} else if (i < steps) {
			piece->kind = (enum kind)(1 + rand_r(&state) % (KINDS - 1));
			const CUresult result = take(piece, bytes, &state);

			count(result);
			if (result)
				*piece = (struct piece){0};
		}
	}
	return argument;
}

static CUresult give_back_all(void)
{
	CUmemoryPool pool;
	CUresult result = CALL(cuMemPoolDestroy, common);

	if (!result)
		result = CALL(cuDeviceGraphMemTrim, 0);
	if (!result)
		result = CALL(cuCtxSynchronize);
	if (!result)
		result = CALL(cuDeviceGetDefaultMemPool, &pool, 0);
	return result ? result : CALL(cuMemPoolTrimTo, pool, 0);
}

int main(int words_count, char **words)
{
	pthread_t threads[MOST_THREADS];
	size_t before = 0, after = 0, total;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (words_count != 4 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context) ||
	    CALL(cuMemPoolCreate, &common, &on_card) || CALL(cuMemGetInfo_v2, &before, &total))
		return 2;
	const int thread_count = atoi(words[1]) % (MOST_THREADS + 1);

	printf("ready\n");
	fflush(stdout);
	getchar();
	steps = atoi(words[2]);
	seed = (unsigned)atoi(words[3]);
	for (intptr_t i = 0; i < thread_count; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	if (give_back_all() || CALL(cuMemGetInfo_v2, &after, &total))
		return 2;
	printf("%d %d %d %lld\n", atomic_load(&given), atomic_load(&refused), atomic_load(&failed),
	       (long long)before - (long long)after);
	fflush(stdout);
	getchar();
	return 0;
}
