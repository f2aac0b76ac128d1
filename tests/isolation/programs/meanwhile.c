/*
 * NVML is asked for what one thread has just done; before it has answered, another thread goes on.
 *
 *	meanwhile load ROOM BYTES     with so much room loads code; the other one allocates
 *	meanwhile import HANDLE       opens memory of another process, at a pause point of the library
 *	meanwhile trim ROOM BYTES     trims a pool of so many bytes; the other one loads code
 *	meanwhile sync ROOM BYTES     the same where the driver trims it at a synchronize
 *	meanwhile draw ROOM BYTES     draws from a pool that has so many bytes, at two pause points;
 *	                              at the first it is synchronized, at the second "ready" is said
 *	meanwhile undo ROOM BYTES     draws so many bytes on a stream that waits for the other one, from
 *	                              a pool that grows by more than the room; the other one draws too
 *
 * Prints whether the first one failed, what the other one got, and the free bytes that it saw.
 */
#include "call.h"
#include "spin.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *driver;
static CUcontext context;
static CUipcMemHandle handle;
static CUmemoryPool pool;

static uint64_t nvml_calls(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);

	return nvml ? ((uint64_t(*)(void))dlsym(nvml, "gpusim_nvml_calls"))() : 0;
}

static void *load(void *ignored)
{
	CUmodule module;
	CUresult result = CALL(cuCtxSetCurrent, context);

	(void)ignored;
	if (!result)
		result = CALL(cuModuleLoadData, &module, spin_image);
	return (void *)(uintptr_t)result;
}

static void *import(void *ignored)
{
	CUdeviceptr pointer;
	CUresult result = CALL(cuCtxSetCurrent, context);

	(void)ignored;
	if (!result)
		result = CALL(cuIpcOpenMemHandle_v2, &pointer, handle, 1);
	return (void *)(uintptr_t)result;
}

static void *trim(void *ignored)
{
	CUresult result = CALL(cuCtxSetCurrent, context);

	(void)ignored;
	if (!result)
		result = CALL(cuMemPoolTrimTo, pool, 0);
	return (void *)(uintptr_t)result;
}

static void *synchronize(void *ignored)
{
	cuuint64_t none = 0;
	CUresult result = CALL(cuCtxSetCurrent, context);

	(void)ignored;
	if (!result)
		result = CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
			      &none);
	if (!result)
		result = CALL(cuStreamSynchronize, NULL);
	return (void *)(uintptr_t)result;
}

static CUstream behind, beside; /* the default one until they are made */
static CUdeviceptr word;

static void *draw(void *bytes)
{
	CUdeviceptr pointer;
	CUresult result = CALL(cuCtxSetCurrent, context);

	if (!result)
		result = CALL(cuMemAllocAsync, &pointer, *(size_t *)bytes, behind);
	return (void *)(uintptr_t)result;
}

static cuuint64_t reserved(void)
{
	cuuint64_t bytes = 0;

	CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
	return bytes;
}

static size_t room(void)
{
	size_t free_bytes = 0, total_bytes;

	CALL(cuMemGetInfo_v2, &free_bytes, &total_bytes);
	return free_bytes;
}

static CUresult take(size_t bytes)
{
	CUdeviceptr pointer;

	return CALL(cuMemAlloc_v2, &pointer, bytes);
}

static void read_handle(const char *text)
{
	for (size_t i = 0; i < sizeof(handle); i++)
		if (sscanf(text + 2 * i, "%2hhx", (unsigned char *)&handle + i) != 1)
			exit(5);
}

/* Nobody uses it any more. */
static CUresult fill_pool(size_t bytes)
{
	cuuint64_t all = ~0ull;
	CUdeviceptr pointer;
	CUresult result = CALL(cuDeviceGetDefaultMemPool, &pool, 0);

	if (!result)
		result = CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
	if (!result)
		result = CALL(cuMemAllocAsync, &pointer, bytes, NULL);
	if (!result)
		result = CALL(cuMemFreeAsync, pointer, NULL);
	return result;
}

/* Both threads, the other one when NVML was asked so often. */
static int run(void *(*first)(void *), uint64_t calls, size_t bytes)
{
	const uint64_t before = nvml_calls();
	pthread_t thread;
	void *failed;

	pthread_create(&thread, NULL, first, NULL);
	while (nvml_calls() < before + calls)
		sched_yield();
	const CUresult result = take(bytes);

	pthread_join(thread, &failed);
	printf("%d %d %zu\n", failed != NULL, result, room());
	return 0;
}

/* The library waits behind the driver's call until the file is gone. */
static int run_paused(void *(*first)(void *), const char *file)
{
	pthread_t thread;
	void *failed;

	pthread_create(&thread, NULL, first, NULL);
	while (access(file, F_OK))
		sched_yield();
	const int result = first == import ? 0 : (int)(uintptr_t)load(NULL);
	const size_t seen = first == import ? room() : 0; /* a pool's lock is taken */

	unlink(file);
	pthread_join(thread, &failed);
	printf("%d %d %zu\n", failed != NULL, result, first == import ? seen : room());
	return 0;
}

static void wait_for(const char *file)
{
	while (access(file, F_OK))
		sched_yield();
}

/* The pool shrinks between what the library saw of it and the call. */
static int run_drawing(size_t bytes, const char *file)
{
	const CUresult result = (CUresult)(uintptr_t)load(NULL); /* NVML is to be asked */
	pthread_t thread;
	void *failed, *waited;

	pthread_create(&thread, NULL, draw, &bytes);
	wait_for(file);
	waited = synchronize(NULL);
	unlink(file);
	wait_for(file);
	puts("ready");
	fflush(stdout);
	pthread_join(thread, &failed);
	printf("%d %d %d\n", result, waited != NULL, failed != NULL);
	return 0;
}

/* The driver takes what it is asked for, then all at once whole chunks. */
static CUresult prepare_undo(void)
{
	CUdeviceptr pointer;
	CUresult result = CALL(cuDeviceGetDefaultMemPool, &pool, 0);

	if (!result)
		result = CALL(cuMemAllocAsync, &pointer, 100 << 20, NULL);
	if (!result)
		result = CALL(cuStreamCreate, &behind, CU_STREAM_NON_BLOCKING);
	if (!result)
		result = CALL(cuStreamCreate, &beside, CU_STREAM_NON_BLOCKING);
	if (!result)
		result = CALL(cuMemAlloc_v2, &word, 4);
	if (!result)
		result = CALL(cuMemsetD32_v2, word, 0, 1);
	return setenv("GPU_SIMULATOR_POOL_EXACT", "0", 1) ? CUDA_ERROR_UNKNOWN : result;
}

/* What was drawn is given back, behind what the stream waits for. */
static int run_undoing(size_t bytes)
{
	const cuuint64_t before = reserved();
	CUdeviceptr pointer;
	pthread_t thread;
	void *failed;

	if (CALL(cuStreamWaitValue32_v2, behind, word, 1, CU_STREAM_WAIT_VALUE_GEQ))
		return 4;
	pthread_create(&thread, NULL, draw, &bytes);
	while (reserved() == before)
		sched_yield();
	const CUresult result = CALL(cuMemAllocAsync, &pointer, 4096, beside);

	CALL(cuStreamWriteValue32_v2, beside, word, 1, 0);
	pthread_join(thread, &failed);
	printf("%d %d %zu\n", (int)(uintptr_t)failed, result, room());
	return 0;
}

int main(int count, char **words)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 3 || !driver || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 2;
	if (!strcmp(words[1], "import")) {
		read_handle(words[2]);
		return run_paused(import, getenv("GPUSLICE_PAUSEFILE"));
	}
	const bool is_sync = !strcmp(words[1], "sync");
	const bool is_draw = !strcmp(words[1], "draw");
	const bool is_trim = is_sync || is_draw || !strcmp(words[1], "trim");

	const bool is_undo = !strcmp(words[1], "undo");

	if (count < 4 || (is_undo && prepare_undo()) || (is_trim && fill_pool(strtoull(words[3], NULL, 10))) ||
	    take(room() - strtoull(words[2], NULL, 10)))
		return 3;
	if (is_undo)
		return run_undoing(strtoull(words[3], NULL, 10));
	if (is_draw)
		return run_drawing(strtoull(words[3], NULL, 10), getenv("GPUSLICE_PAUSEFILE"));
	return is_trim ? run_paused(is_sync ? synchronize : trim, getenv("GPUSLICE_PAUSEFILE"))
		       : run(load, 1, strtoull(words[3], NULL, 10));
}
