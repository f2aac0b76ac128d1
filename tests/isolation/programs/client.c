/*
 * A CUDA program that does what it is told, one line of input at a time, and
 * answers each line with one line: the result's number, then figures.
 *
 *	client [RTLD flags]   loads libcuda.so.1 and, on demand, libnvidia-ml.so.1
 */
#include "spin.h"

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <cuda.h>
#include <nvml.h>

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OBJECTS = 4096 };

static void *driver;
static uint64_t objects[OBJECTS]; /* pointers and handles, by the number the tester gave */
static CUfunction spin;
static CUmodule spin_module;
static CUlibrary library;
static CUstream streams[16];

static void *find(const char *name)
{
	void *function = dlsym(driver, name);

	if (!function) {
		printf("-1 no %s\n", name);
		fflush(stdout);
		exit(3);
	}
	return function;
}

#define CALL(name, ...) (((__typeof__(name) *)find(#name))(__VA_ARGS__))

static CUresult make_spin(void)
{
	CUresult result = CALL(cuModuleLoadData, &spin_module, spin_image);

	return result ? result : CALL(cuModuleGetFunction, &spin, spin_module, "spin");
}

static CUstream stream_of(unsigned number)
{
	return number ? streams[number % 16] : NULL;
}

static CUresult launch(uint64_t duration_ns, unsigned stream)
{
	void *parameters[] = {&duration_ns};

	if (!spin) {
		CUresult result = make_spin();

		if (result)
			return result;
	}
	return CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream_of(stream), parameters, NULL);
}

/* --- one function a command; each prints its line ------------------------------- */

static void do_alloc(char *words[])
{
	CUdeviceptr pointer = 0;
	const CUresult result = CALL(cuMemAlloc_v2, &pointer, strtoull(words[2], NULL, 10));

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d\n", result);
}

static void do_managed(char *words[])
{
	CUdeviceptr pointer = 0;
	const CUresult result = CALL(cuMemAllocManaged, &pointer, strtoull(words[2], NULL, 10), 1);

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d\n", result);
}

static void do_pitch(char *words[])
{
	CUdeviceptr pointer = 0;
	size_t pitch = 0;
	const CUresult result = CALL(cuMemAllocPitch_v2, &pointer, &pitch,
				     strtoull(words[2], NULL, 10), strtoull(words[3], NULL, 10), 4);

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d %zu\n", result, pitch);
}

static void do_free(char *words[])
{
	printf("%d\n", CALL(cuMemFree_v2, objects[atoi(words[1]) % OBJECTS]));
}

/* churn BYTES SECONDS: takes and gives back physical memory of card 1 all the time; how often. */
static void do_churn(char *words[])
{
	const struct timespec pause = {.tv_nsec = 300000};
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	const time_t end = time(NULL) + atoi(words[2]);
	CUmemGenericAllocationHandle handle;
	CUresult result = CUDA_SUCCESS;
	int times = 0;

	for (; !result && time(NULL) < end; times++) {
		result = CALL(cuMemCreate, &handle, strtoull(words[1], NULL, 10), &prop, 0);
		nanosleep(&pause, NULL);
		if (!result)
			result = CALL(cuMemRelease, handle);
		nanosleep(&pause, NULL);
	}
	printf("%d %d\n", result, times);
}

static void do_create(char *words[])
{
	CUmemGenericAllocationHandle handle = 0;
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
						       .id = words[3] ? atoi(words[3]) : 0}};
	const CUresult result = CALL(cuMemCreate, &handle, strtoull(words[2], NULL, 10), &prop, 0);

	objects[atoi(words[1]) % OBJECTS] = handle;
	printf("%d\n", result);
}

/* create_at NUMBER BYTES PLACE ID: physical memory of any place, by number. */
static void do_create_at(char *words[])
{
	CUmemGenericAllocationHandle handle = 0;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = (CUmemLocationType)atoi(words[3]), .id = atoi(words[4])}};
	const CUresult result = CALL(cuMemCreate, &handle, strtoull(words[2], NULL, 10), &prop, 0);

	objects[atoi(words[1]) % OBJECTS] = handle;
	printf("%d\n", result);
}

static void do_release(char *words[])
{
	printf("%d\n", CALL(cuMemRelease, objects[atoi(words[1]) % OBJECTS]));
}

static void do_map(char *words[])
{
	CUdeviceptr address = 0;
	const size_t size = strtoull(words[3], NULL, 10);
	CUresult result = CALL(cuMemAddressReserve, &address, size, 0, 0, 0);

	if (!result)
		result = CALL(cuMemMap, address, size, 0, objects[atoi(words[2]) % OBJECTS], 0);
	objects[atoi(words[1]) % OBJECTS] = address;
	printf("%d\n", result);
}

static void do_unmap(char *words[])
{
	printf("%d\n",
	       CALL(cuMemUnmap, objects[atoi(words[1]) % OBJECTS], strtoull(words[2], NULL, 10)));
}

static void do_retain_handle(char *words[])
{
	CUmemGenericAllocationHandle handle = 0;
	const CUresult result = CALL(cuMemRetainAllocationHandle, &handle,
				     (void *)(uintptr_t)objects[atoi(words[2]) % OBJECTS]);

	objects[atoi(words[1]) % OBJECTS] = handle;
	printf("%d\n", result);
}

static void do_async(char *words[])
{
	CUdeviceptr pointer = 0;
	const CUresult result =
		CALL(cuMemAllocAsync, &pointer, strtoull(words[2], NULL, 10), stream_of(0));

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d\n", result);
}

static void do_free_async(char *words[])
{
	printf("%d\n", CALL(cuMemFreeAsync, objects[atoi(words[1]) % OBJECTS], stream_of(0)));
}

static void do_pool(char *words[])
{
	CUmemoryPool pool = NULL;
	const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	const CUresult result = CALL(cuMemPoolCreate, &pool, &props);

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)pool;
	printf("%d\n", result);
}

/* pool_at NUMBER PLACE ID TYPE [HANDLES]: a pool of any place and type, by number. */
static void do_pool_at(char *words[])
{
	CUmemoryPool pool = NULL;
	const CUmemPoolProps props = {
		.allocType = (CUmemAllocationType)atoi(words[4]),
		.handleTypes = (CUmemAllocationHandleType)(words[5] ? atoi(words[5]) : 0),
		.location = {.type = (CUmemLocationType)atoi(words[2]), .id = atoi(words[3])}};
	const CUresult result = CALL(cuMemPoolCreate, &pool, &props);

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)pool;
	printf("%d\n", result);
}

typedef CUresult get_pool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);

/* pool_of NUMBER PLACE ID: the pool of a place by CUDA 13's call; its default one, then its
 * current. */
static void do_pool_of(char *words[])
{
	CUmemLocation place = {.type = (CUmemLocationType)atoi(words[2]), .id = atoi(words[3])};
	CUmemoryPool pools[2] = {NULL, NULL};
	CUresult result = ((get_pool *)find("cuMemGetDefaultMemPool"))(
		&pools[0], &place, CU_MEM_ALLOCATION_TYPE_PINNED);

	if (!result)
		result = ((get_pool *)find("cuMemGetMemPool"))(&pools[1], &place,
							       CU_MEM_ALLOCATION_TYPE_PINNED);
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)pools[1];
	printf("%d %d\n", result, pools[0] == pools[1]);
}

/* Handles and tickets of 64 bytes go from one process to another as hexadecimal digits. */
static void print_bytes(CUresult result, const void *bytes, size_t count)
{
	printf("%d ", result);
	for (size_t i = 0; i < count; i++)
		printf("%02x", ((const unsigned char *)bytes)[i]);
	printf("\n");
}

static void read_bytes(const char *text, void *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (sscanf(text + 2 * i, "%2hhx", (unsigned char *)bytes + i) != 1)
			exit(5);
}

/* A descriptor of another process's. */
static int fetch_file(const char *pid, const char *number)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, number);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void do_pool_export(char *words[])
{
	int file = -1;
	const CUresult result = CALL(cuMemPoolExportToShareableHandle, &file,
				     (CUmemoryPool)(uintptr_t)objects[atoi(words[1]) % OBJECTS],
				     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

	printf("%d %d\n", result, file);
}

/* pool_import NUMBER PID FILE */
static void do_pool_import(char *words[])
{
	CUmemoryPool pool = NULL;
	const CUresult result = CALL(cuMemPoolImportFromShareableHandle, &pool,
				     (void *)(intptr_t)fetch_file(words[2], words[3]),
				     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)pool;
	printf("%d\n", result);
}

static void do_pool_pointer(char *words[])
{
	CUmemPoolPtrExportData ticket = {{0}};
	const CUresult result =
		CALL(cuMemPoolExportPointer, &ticket, objects[atoi(words[1]) % OBJECTS]);

	print_bytes(result, &ticket, sizeof(ticket));
}

/* pool_pointer_import NUMBER POOL TICKET */
static void do_pool_pointer_import(char *words[])
{
	CUmemPoolPtrExportData ticket;
	CUdeviceptr pointer = 0;

	read_bytes(words[3], &ticket, sizeof(ticket));
	const CUresult result =
		CALL(cuMemPoolImportPointer, &pointer,
		     (CUmemoryPool)(uintptr_t)objects[atoi(words[2]) % OBJECTS], &ticket);

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d\n", result);
}

static void do_ipc(char *words[])
{
	CUipcMemHandle handle = {{0}};
	const CUresult result = CALL(cuIpcGetMemHandle, &handle, objects[atoi(words[1]) % OBJECTS]);

	print_bytes(result, &handle, sizeof(handle));
}

static void do_ipc_open(char *words[])
{
	CUipcMemHandle handle;
	CUdeviceptr pointer = 0;

	read_bytes(words[2], &handle, sizeof(handle));
	const CUresult result = CALL(cuIpcOpenMemHandle_v2, &pointer, handle, 1);

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d\n", result);
}

static void do_ipc_close(char *words[])
{
	printf("%d\n", CALL(cuIpcCloseMemHandle, objects[atoi(words[1]) % OBJECTS]));
}

/* create_shared NUMBER BYTES: physical memory, and the descriptor that exports it. */
static void do_create_shared(char *words[])
{
	CUmemGenericAllocationHandle handle = 0;
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	int file = -1;
	CUresult result = CALL(cuMemCreate, &handle, strtoull(words[2], NULL, 10), &prop, 0);

	if (!result)
		result = CALL(cuMemExportToShareableHandle, &file, handle,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	objects[atoi(words[1]) % OBJECTS] = handle;
	printf("%d %d\n", result, file);
}

/* import NUMBER PID FILE: physical memory of another process. */
static void do_import(char *words[])
{
	CUmemGenericAllocationHandle handle = 0;
	const CUresult result = CALL(cuMemImportFromShareableHandle, &handle,
				     (void *)(intptr_t)fetch_file(words[2], words[3]),
				     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	objects[atoi(words[1]) % OBJECTS] = handle;
	printf("%d\n", result);
}

/* external BYTES PID FILE: memory of another API, as CUDA sees it. */
static void do_external(char *words[])
{
	CUexternalMemory memory = NULL;
	CUdeviceptr pointer = 0;
	const CUDA_EXTERNAL_MEMORY_HANDLE_DESC whole = {
		.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
		.handle = {.fd = fetch_file(words[2], words[3])},
		.size = strtoull(words[1], NULL, 10)};
	const CUDA_EXTERNAL_MEMORY_BUFFER_DESC part = {.size = whole.size};
	CUresult result = CALL(cuImportExternalMemory, &memory, &whole);

	if (!result)
		result = CALL(cuExternalMemoryGetMappedBuffer, &pointer, memory, &part);
	printf("%d\n", result);
}

/* pool_default NUMBER CARD: the pool that a card has by itself. */
static void do_pool_default(char *words[])
{
	CUmemoryPool pool = NULL;
	const CUresult result = CALL(cuDeviceGetDefaultMemPool, &pool, atoi(words[2]));

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)pool;
	printf("%d\n", result);
}

static void do_from_pool(char *words[])
{
	CUdeviceptr pointer = 0;
	const CUresult result =
		CALL(cuMemAllocFromPoolAsync, &pointer, strtoull(words[3], NULL, 10),
		     (CUmemoryPool)(uintptr_t)objects[atoi(words[2]) % OBJECTS], stream_of(0));

	objects[atoi(words[1]) % OBJECTS] = pointer;
	printf("%d\n", result);
}

static void do_pool_keep(char *words[])
{
	cuuint64_t keep = strtoull(words[2], NULL, 10);
	CUmemoryPool pool = (CUmemoryPool)(uintptr_t)objects[atoi(words[1]) % OBJECTS];
	CUresult result = CUDA_SUCCESS;

	if (!strcmp(words[1], "default"))
		result = CALL(cuDeviceGetDefaultMemPool, &pool, 0);
	if (!result)
		result =
			CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
	printf("%d\n", result);
}

/* pool_use NUMBER: card 0 draws from it. */
static void do_pool_use(char *words[])
{
	printf("%d\n", CALL(cuDeviceSetMemPool, 0,
			    (CUmemoryPool)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_pool_trim(char *words[])
{
	printf("%d\n", CALL(cuMemPoolTrimTo,
			    (CUmemoryPool)(uintptr_t)objects[atoi(words[1]) % OBJECTS], 0));
}

static void do_pool_destroy(char *words[])
{
	printf("%d\n",
	       CALL(cuMemPoolDestroy, (CUmemoryPool)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_array(char *words[])
{
	CUarray array = NULL;
	const CUDA_ARRAY_DESCRIPTOR shape = {.Width = strtoull(words[2], NULL, 10),
					     .Height = strtoull(words[3], NULL, 10),
					     .Format = (CUarray_format)strtoul(words[4], NULL, 0),
					     .NumChannels = (unsigned)atoi(words[5])};
	const CUresult result = CALL(cuArrayCreate_v2, &array, &shape);

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)array;
	printf("%d\n", result);
}

static void do_array3d(char *words[])
{
	CUarray array = NULL;
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = strtoull(words[2], NULL, 10),
					       .Height = strtoull(words[3], NULL, 10),
					       .Depth = strtoull(words[4], NULL, 10),
					       .Format = (CUarray_format)strtoul(words[5], NULL, 0),
					       .NumChannels = (unsigned)atoi(words[6])};
	const CUresult result = CALL(cuArray3DCreate_v2, &array, &shape);

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)array;
	printf("%d\n", result);
}

static void do_array_destroy(char *words[])
{
	printf("%d\n", CALL(cuArrayDestroy, (CUarray)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_mipmap(char *words[])
{
	CUmipmappedArray array = NULL;
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = strtoull(words[2], NULL, 10),
					       .Height = strtoull(words[3], NULL, 10),
					       .Format = CU_AD_FORMAT_UNSIGNED_INT8,
					       .NumChannels = 4};
	const CUresult result =
		CALL(cuMipmappedArrayCreate, &array, &shape, (unsigned)atoi(words[4]));

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)array;
	printf("%d\n", result);
}

static void do_mipmap_destroy(char *words[])
{
	printf("%d\n", CALL(cuMipmappedArrayDestroy,
			    (CUmipmappedArray)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_host(char *words[])
{
	void *memory;

	printf("%d\n", CALL(cuMemHostAlloc, &memory, strtoull(words[1], NULL, 10), 0));
}

/*
 * graph NUMBER BYTES [CARD [NODES [kept]]]: an executable graph of allocation nodes, then their
 * frees; kept: the next launch frees them.
 */
static void do_graph(char *words[])
{
	enum { NODES = 500 };
	static CUgraphNode nodes[NODES];
	static CUdeviceptr pointers[NODES];
	CUgraph graph;
	CUgraphNode freeing;
	CUgraphExec exec = NULL;
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
					   .id = words[3] ? atoi(words[3]) : 0}},
		.bytesize = strtoull(words[2], NULL, 10)};
	const int count = words[3] && words[4] ? atoi(words[4]) % (NODES + 1) : 1;
	const bool is_kept = words[3] && words[4] && words[5];
	CUresult result = CALL(cuGraphCreate, &graph, 0);

	for (int i = 0; !result && i < count; i++) {
		result = CALL(cuGraphAddMemAllocNode, &nodes[i], graph, NULL, 0, &parameters);
		pointers[i] = parameters.dptr;
	}
	for (int i = 0; !result && i < count && !is_kept; i++)
		result = CALL(cuGraphAddMemFreeNode, &freeing, graph, nodes, count, pointers[i]);
	if (!result)
		result = CALL(cuGraphInstantiateWithFlags, &exec, graph,
			      is_kept ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0);
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)exec;
	printf("%d\n", result);
}

/* graph_two NUMBER BYTES: an executable graph that takes so many of card 0 and of card 1. */
static void do_graph_two(char *words[])
{
	CUgraph graph;
	CUgraphExec exec = NULL;
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
		.bytesize = strtoull(words[2], NULL, 10)};
	CUresult result = CALL(cuGraphCreate, &graph, 0);

	for (int card = 0; !result && card < 2; card++) {
		CUgraphNode node, freeing;

		parameters.poolProps.location.id = card;
		result = CALL(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &parameters);
		if (!result)
			result = CALL(cuGraphAddMemFreeNode, &freeing, graph, &node, 1,
				      parameters.dptr);
	}
	if (!result)
		result = CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)exec;
	printf("%d\n", result);
}

/* One allocation node and its free. */
static CUresult make_graph(CUgraph *graph, const char *bytes)
{
	CUgraphNode node, freeing;
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
		.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
		.bytesize = strtoull(bytes, NULL, 10)};
	CUresult result = CALL(cuGraphCreate, graph, 0);

	if (!result)
		result = CALL(cuGraphAddMemAllocNode, &node, *graph, NULL, 0, &parameters);
	if (!result)
		result = CALL(cuGraphAddMemFreeNode, &freeing, *graph, &node, 1, parameters.dptr);
	return result;
}

/* graph_uploaded NUMBER BYTES: instantiated with its upload; answers the result, the driver's too.
 */
static void do_graph_uploaded(char *words[])
{
	CUgraph graph;
	CUgraphExec exec = NULL;
	CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUresult result = make_graph(&graph, words[2]);

	if (!result)
		result = CALL(cuGraphInstantiateWithParams, &exec, graph, &how);
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)exec;
	printf("%d %d\n", result, how.result_out);
}

/* graph_update NUMBER BYTES VERSION: the executable graph becomes one of another size. */
static void do_graph_update(char *words[])
{
	typedef CUresult update(CUgraphExec, CUgraph, CUgraphNode *, CUgraphExecUpdateResult *);
	CUgraphExec exec = (CUgraphExec)(uintptr_t)objects[atoi(words[1]) % OBJECTS];
	CUgraph graph;
	CUgraphNode node;
	CUgraphExecUpdateResult outcome;
	CUgraphExecUpdateResultInfo info;
	CUresult result = make_graph(&graph, words[2]);

	if (!result && atoi(words[3]) == 1)
		result = ((update *)find("cuGraphExecUpdate"))(exec, graph, &node, &outcome);
	else if (!result)
		result = CALL(cuGraphExecUpdate_v2, exec, graph, &info);
	printf("%d\n", result);
}

/* kernel_graph NUMBER DURATION_NS COUNT: an executable graph of kernels in a row. */
static void do_kernel_graph(char *words[])
{
	CUgraph graph;
	CUgraphNode last = NULL;
	CUgraphExec exec = NULL;
	uint64_t duration_ns = strtoull(words[2], NULL, 10);
	void *parameters[] = {&duration_ns};
	CUresult result = spin ? CUDA_SUCCESS : make_spin();
	const CUDA_KERNEL_NODE_PARAMS kernel = kernel_node(spin, 1, parameters);

	if (!result)
		result = CALL(cuGraphCreate, &graph, 0);
	for (int i = 0; !result && i < atoi(words[3]); i++) {
		CUgraphNode next;

		result = CALL(cuGraphAddKernelNode_v2, &next, graph, last ? &last : NULL,
			      last ? 1 : 0, &kernel);
		last = next;
	}
	if (!result)
		result = CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)exec;
	printf("%d\n", result);
}

static void do_graph_launch(char *words[])
{
	CUresult result =
		CALL(cuGraphLaunch, (CUgraphExec)(uintptr_t)objects[atoi(words[1]) % OBJECTS],
		     stream_of(0));

	if (!result)
		result = CALL(cuStreamSynchronize, stream_of(0));
	printf("%d\n", result);
}

/* setenv NAME VALUE: the simulated driver reads its settings at each call. */
static void do_setenv(char *words[])
{
	printf("%d\n", setenv(words[1], words[2], 1));
}

static void do_graph_trim(char *words[])
{
	(void)words;
	printf("%d\n", CALL(cuDeviceGraphMemTrim, 0));
}

static void do_context(char *words[])
{
	CUcontext context = NULL;
	const CUresult result = CALL(cuCtxCreate_v2, &context, 0, words[2] ? atoi(words[2]) : 0);

	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)context;
	printf("%d\n", result);
}

static void do_context_destroy(char *words[])
{
	printf("%d\n",
	       CALL(cuCtxDestroy_v2, (CUcontext)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_context_detach(char *words[])
{
	printf("%d\n", CALL(cuCtxDetach, (CUcontext)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

/* context_attach: the current one has one user more. */
static void do_context_attach(char *words[])
{
	CUcontext context = NULL;

	(void)words;
	printf("%d\n", CALL(cuCtxAttach, &context, 0));
}

static void do_retain(char *words[])
{
	CUcontext context = NULL;
	CUresult result = CALL(cuDevicePrimaryCtxRetain, &context, words[1] ? atoi(words[1]) : 0);

	if (!result)
		result = CALL(cuCtxSetCurrent, context);
	printf("%d\n", result);
}

static CUresult green_description(int card, CUdevResourceDesc *description)
{
	CUdevResource all, part;
	unsigned count = 1;
	CUresult result = CALL(cuDeviceGetDevResource, card, &all, CU_DEV_RESOURCE_TYPE_SM);

	if (!result)
		result = CALL(cuDevSmResourceSplitByCount, &part, &count, &all, NULL, 0, 8);
	return result ? result : CALL(cuDevResourceGenerateDesc, description, &part, 1);
}

/* green NUMBER [CARD]: a green context; none is made current. */
static void do_green(char *words[])
{
	CUdevResourceDesc description;
	CUgreenCtx green = NULL;
	const int card = words[2] ? atoi(words[2]) : 0;
	CUresult result = green_description(card, &description);

	if (!result)
		result = CALL(cuGreenCtxCreate, &green, description, card,
			      CU_GREEN_CTX_DEFAULT_STREAM);
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)green;
	printf("%d\n", result);
}

static void do_green_destroy(char *words[])
{
	printf("%d\n",
	       CALL(cuGreenCtxDestroy, (CUgreenCtx)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_green_current(char *words[])
{
	CUcontext context = NULL;
	CUresult result = CALL(cuCtxFromGreenCtx, &context,
			       (CUgreenCtx)(uintptr_t)objects[atoi(words[1]) % OBJECTS]);

	printf("%d\n", result ? result : CALL(cuCtxSetCurrent, context));
}

/* primary_release [CARD]: one user of the primary context less. */
static void do_primary_release(char *words[])
{
	printf("%d\n", CALL(cuDevicePrimaryCtxRelease_v2, words[1] ? atoi(words[1]) : 0));
}

static void do_reset(char *words[])
{
	(void)words;
	printf("%d\n", CALL(cuDevicePrimaryCtxReset_v2, 0));
}

static void do_module(char *words[])
{
	(void)words;
	printf("%d\n", make_spin());
}

static void do_module_unload(char *words[])
{
	(void)words;
	spin = NULL;
	printf("%d\n", CALL(cuModuleUnload, spin_module));
}

/* From now on what is launched is a library's kernel, one handle for all contexts. */
static void do_library(char *words[])
{
	CUkernel kernel = NULL;
	CUresult result = CALL(cuLibraryLoadData, &library, spin_image, NULL, NULL, 0, NULL, NULL, 0);

	(void)words;
	if (!result)
		result = CALL(cuLibraryGetKernel, &kernel, library, "spin");
	spin = (CUfunction)kernel;
	printf("%d\n", result);
}

/* An image of so many bytes: what it is, and blanks. */
static const void *image_of(const char *format, size_t bytes)
{
	static struct {
		unsigned magic, version;
		const void *image;
	} wrapper = {0x466243b1, 1, NULL};
	const unsigned fat[] = {0xba55ed50, 16 << 16 | 1, (unsigned)bytes, 0};
	const unsigned part[] = {1 << 16 | 1, 64, (unsigned)bytes - 64, 0};
	const Elf64_Ehdr cubin = {.e_ident = ELFMAG "\2\1\1",
				  .e_machine = 190,
				  .e_shoff = bytes - sizeof(Elf64_Shdr),
				  .e_shnum = 1,
				  .e_shentsize = sizeof(Elf64_Shdr)};
	char *image = calloc(1, bytes + sizeof(fat) + 1), *text = image;

	if (!strcmp(format, "cubin"))
		return memcpy(image, &cubin, sizeof(cubin));
	if (strcmp(format, "text") != 0) {
		memcpy(image, fat, sizeof(fat));
		memcpy(image + sizeof(fat), part, sizeof(part));
		text += sizeof(fat) + 64;
		bytes -= 64;
	}
	memset(text, ' ', bytes);
	memcpy(text, spin_image, sizeof(spin_image) - 1);
	wrapper.image = image;
	return !strcmp(format, "wrapper") ? (const void *)&wrapper : image;
}

/* A fat binary with a cubin of so many bytes for each of these, and the kernel's PTX. */
static const void *fat_of(const unsigned *architectures, unsigned count, size_t bytes)
{
	const Elf64_Ehdr cubin = {.e_ident = ELFMAG "\2\1\1",
				  .e_machine = 190,
				  .e_shoff = bytes - sizeof(Elf64_Shdr),
				  .e_shnum = 1,
				  .e_shentsize = sizeof(Elf64_Shdr)};
	const size_t text_bytes = sizeof(spin_image), part_bytes = 64 + bytes;
	const size_t all = count * part_bytes + 64 + text_bytes;
	const unsigned head[] = {0xba55ed50, 16 << 16 | 1, (unsigned)all, 0};
	unsigned part[16] = {1 << 16 | 2, 64, (unsigned)bytes, 0};
	char *image = calloc(1, sizeof(head) + all), *at = image + sizeof(head);

	memcpy(image, head, sizeof(head));
	for (unsigned i = 0; i < count; i++, at += part_bytes) {
		part[7] = architectures[i];
		memcpy(at, part, sizeof(part));
		memcpy(at + 64, &cubin, sizeof(cubin));
	}
	part[0] = 1 << 16 | 1;
	part[2] = (unsigned)text_bytes;
	memcpy(at, part, sizeof(part));
	memcpy(at + 64, spin_image, text_bytes);
	return image;
}

/* A cubin with variables of so many bytes that begin as zeros. */
static const void *cubin_of_variables(size_t bytes)
{
	struct cubin {
		Elf64_Ehdr header;
		char names[32];
		Elf64_Shdr sections[3];
	};
	static struct cubin image = {.header = {.e_ident = ELFMAG "\2\1\1",
			      .e_machine = 190,
			      .e_shoff = offsetof(struct cubin, sections),
			      .e_shnum = 3,
			      .e_shentsize = sizeof(Elf64_Shdr),
			      .e_shstrndx = 1},
		   .names = "\0.shstrtab\0.nv.global",
		   .sections = {[1] = {.sh_name = 1,
				       .sh_type = SHT_STRTAB,
				       .sh_offset = offsetof(struct cubin, names),
				       .sh_size = 32},
				[2] = {.sh_name = 11, .sh_type = SHT_NOBITS}}};

	image.sections[2].sh_size = bytes;
	return &image;
}

/* variables BYTES: loads one as the module. */
static void do_variables(char *words[])
{
	printf("%d\n", CALL(cuModuleLoadData, &spin_module,
			    cubin_of_variables(strtoull(words[1], NULL, 10))));
}

/* fat BYTES ARCHITECTURE [ARCHITECTURE]: loads one as the module. */
static void do_fat(char *words[])
{
	const unsigned architectures[] = {(unsigned)atoi(words[2]),
					  words[3] ? (unsigned)atoi(words[3]) : 0};

	printf("%d\n", CALL(cuModuleLoadData, &spin_module,
			    fat_of(architectures, words[3] ? 2 : 1, strtoull(words[1], NULL, 10))));
}

/* heap BYTES: of the device's malloc. */
static void do_heap(char *words[])
{
	printf("%d\n", CALL(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, strtoull(words[1], NULL, 10)));
}

/* image FORMAT BYTES, or image file PATH: loads one as the module. */
static void do_image(char *words[])
{
	CUresult result;

	if (!strcmp(words[1], "file"))
		result = CALL(cuModuleLoad, &spin_module, words[2]);
	else
		result = CALL(cuModuleLoadData, &spin_module,
			      image_of(words[1], strtoull(words[2], NULL, 10)));
	printf("%d\n", result);
}

/* ask WAY: about the kernel, which with lazy loading brings its code. */
static void do_ask(char *words[])
{
	CUmodule module;
	int value;
	CUresult result = spin ? CUDA_SUCCESS : make_spin();

	if (!result && !strcmp(words[1], "attribute"))
		result = CALL(cuFuncSetAttribute, spin,
			      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0);
	else if (!result && !strcmp(words[1], "registers"))
		result = CALL(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, spin);
	else if (!result && !strcmp(words[1], "occupancy"))
		result = CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &value, spin, 128, 0);
	else if (!result)
		result = CALL(cuLibraryGetModule, &module, library);
	printf("%d\n", result);
}

/* graph_destroy NUMBER */
static void do_graph_destroy(char *words[])
{
	printf("%d\n", CALL(cuGraphExecDestroy,
			    (CUgraphExec)(uintptr_t)objects[atoi(words[1]) % OBJECTS]));
}

static void do_library_unload(char *words[])
{
	(void)words;
	spin = NULL;
	printf("%d\n", CALL(cuLibraryUnload, library));
}

static void do_init(char *words[])
{
	(void)words;
	printf("%d\n", CALL(cuInit, 0));
}

static void do_info(char *words[])
{
	size_t free_bytes = 0, total_bytes = 0;
	const CUresult result = CALL(cuMemGetInfo_v2, &free_bytes, &total_bytes);

	(void)words;
	printf("%d %zu %zu\n", result, free_bytes, total_bytes);
}

static void do_info_null(char *words[])
{
	size_t total_bytes = 0;
	const CUresult result = CALL(cuMemGetInfo_v2, NULL, &total_bytes);

	(void)words;
	printf("%d %zu\n", result, total_bytes);
}

static void do_total(char *words[])
{
	size_t bytes = 0;
	const CUresult result = CALL(cuDeviceTotalMem_v2, &bytes, words[1] ? atoi(words[1]) : 0);

	printf("%d %zu\n", result, bytes);
}

static void do_count(char *words[])
{
	int count = 0;
	const CUresult result = CALL(cuDeviceGetCount, &count);

	(void)words;
	printf("%d %d\n", result, count);
}

static void do_launch(char *words[])
{
	CUresult result = CUDA_SUCCESS;
	const int count = words[2] ? atoi(words[2]) : 1;

	for (int i = 0; !result && i < count; i++)
		result = launch(strtoull(words[1], NULL, 10),
				words[2] && words[3] ? (unsigned)atoi(words[3]) : 0);
	printf("%d\n", result);
}

static void do_sync(char *words[])
{
	(void)words;
	printf("%d\n", CALL(cuCtxSynchronize));
}

static uint64_t now_ns(void)
{
	uint64_t (*simulated)(void) = (uint64_t(*)(void))dlsym(driver, "gpusim_now_ns");
	struct timespec now;

	if (simulated)
		return simulated();
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Steps with count - 1 other programs, so that their time is not this machine's. */
static CUresult step_together(unsigned count)
{
	int (*join)(unsigned) = (int (*)(unsigned))dlsym(driver, "gpusim_step_together");

	return join && join(count) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static void step_apart(void)
{
	void (*leave)(void) = (void (*)(void))dlsym(driver, "gpusim_step_apart");

	if (leave)
		leave();
}

/* Three streams in turn. */
static CUresult launch_on_streams(uint64_t duration_ns)
{
	static unsigned turn;
	CUstream *stream = &streams[1 + turn++ % 3];
	const CUresult result =
		*stream ? CUDA_SUCCESS : CALL(cuStreamCreate, stream, CU_STREAM_NON_BLOCKING);

	return result ? result : launch(duration_ns, 1 + (turn - 1) % 3);
}

static CUresult launch_per_thread(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return CALL(cuLaunchKernel_ptsz, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

static CUresult launch_ex(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};
	const CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};

	return CALL(cuLaunchKernelEx, &config, spin, parameters, NULL);
}

static CUresult launch_ex_per_thread(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};
	const CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};

	return CALL(cuLaunchKernelEx_ptsz, &config, spin, parameters, NULL);
}

static CUresult launch_cooperative(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return CALL(cuLaunchCooperativeKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters);
}

static CUresult launch_cooperative_per_thread(uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return CALL(cuLaunchCooperativeKernel_ptsz, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters);
}

static CUresult launch_plain(uint64_t duration_ns)
{
	return launch(duration_ns, 0);
}

/* Data to the card, a kernel, data back; all in one stream, nothing waited for. */
static CUresult launch_between_copies(uint64_t duration_ns)
{
	static char data[1 << 20];
	static CUdeviceptr there;
	CUresult result = there ? CUDA_SUCCESS : CALL(cuMemAlloc_v2, &there, sizeof(data));

	if (!result)
		result = CALL(cuMemcpyHtoDAsync_v2, there, data, sizeof(data), NULL);
	if (!result)
		result = launch(duration_ns, 0);
	return result ? result : CALL(cuMemcpyDtoHAsync_v2, data, there, sizeof(data), NULL);
}

/* What a bandwidth test copies at a time. */
enum { TESTED_BYTES = 32000000 };

static CUdeviceptr tested_memory(void)
{
	static CUdeviceptr there;

	return there || !CALL(cuMemAlloc_v2, &there, TESTED_BYTES) ? there : 0;
}

static void *tested_pinned(void)
{
	static void *here;

	return here || !CALL(cuMemHostAlloc, &here, TESTED_BYTES, 0) ? here : NULL;
}

static CUresult fill(uint64_t duration_ns)
{
	(void)duration_ns;
	return CALL(cuMemsetD8Async, tested_memory(), 0, TESTED_BYTES, NULL);
}

static CUresult fill_box(uint64_t duration_ns)
{
	(void)duration_ns;
	return CALL(cuMemsetD2D32_v2_ptds, tested_memory(), 4000, 0, 1000, 8000);
}

static CUresult copy_to_card(uint64_t duration_ns)
{
	static char here[TESTED_BYTES];

	(void)duration_ns;
	return CALL(cuMemcpyHtoD_v2, tested_memory(), here, sizeof(here));
}

static CUresult copy_to_card_in_a_row(uint64_t duration_ns)
{
	(void)duration_ns;
	return CALL(cuMemcpyHtoDAsync_v2, tested_memory(), tested_pinned(), TESTED_BYTES, NULL);
}

/* Two halves, behind so many bytes in each of so many copies on the card. All in one call. */
static CUresult copy_batch(size_t half, size_t before, size_t bytes_before)
{
	enum { COPIES = 64 };
	const CUdeviceptr there = tested_memory(), here = (CUdeviceptr)(uintptr_t)tested_pinned();
	CUdeviceptr to[COPIES], from[COPIES];
	size_t bytes[COPIES], first = 0, failed;
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

	for (size_t i = 0; i < before + 2; i++) {
		const size_t at = i < before ? TESTED_BYTES / 2 : (i - before) * half;

		to[i] = there + at;
		from[i] = i < before ? there : here + at;
		bytes[i] = i < before ? bytes_before : half;
	}
	return CALL(cuMemcpyBatchAsync, to, from, bytes, before + 2, &attributes, &first, 1,
		    &failed, NULL);
}

static CUresult copy_batch_to_card(uint64_t duration_ns)
{
	(void)duration_ns;
	return copy_batch(TESTED_BYTES / 2, 0, 0);
}

static CUresult copy_behind_many_on_card(uint64_t duration_ns)
{
	(void)duration_ns;
	return copy_batch(TESTED_BYTES / 2, 40, 64);
}

static CUresult copy_many_on_card(uint64_t duration_ns)
{
	(void)duration_ns;
	return copy_batch(0, 40, 64 * 1024);
}

/* As large as a batch to the card that takes 5 ms, and over after 0.13. */
static CUresult copy_much_on_card(uint64_t duration_ns)
{
	(void)duration_ns;
	return copy_batch(0, 40, 1600 * 1024);
}

/* A batch as large as the copy behind it, of which two bytes are for the card. */
static CUresult copy_behind_cheap_batch(uint64_t duration_ns)
{
	const CUresult result = copy_batch(1, 2, TESTED_BYTES / 2 - 1);

	return result ? result : copy_to_card_in_a_row(duration_ns);
}

static CUresult copy_boxes_to_host(uint64_t duration_ns)
{
	CUDA_MEMCPY3D_BATCH_OP box = {
		.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = tested_memory()},
		.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
			.op.ptr.ptr = (CUdeviceptr)(uintptr_t)tested_pinned()},
		.extent = {TESTED_BYTES / 1000, 1000, 1},
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUresult (*copy)(size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream) =
		(__typeof__(copy))find("cuMemcpy3DBatchAsync_v2_ptsz");

	(void)duration_ns;
	return copy(1, &box, 0, NULL);
}

static CUresult copy_with_attributes(uint64_t duration_ns)
{
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *, CUstream) =
		(__typeof__(copy))find("cuMemcpyWithAttributesAsync");

	(void)duration_ns;
	return copy(tested_memory(), (CUdeviceptr)(uintptr_t)tested_pinned(), TESTED_BYTES,
		    &attributes, NULL);
}

static CUresult copy_box_to_host(uint64_t duration_ns)
{
	const CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
				   .srcDevice = tested_memory(),
				   .dstMemoryType = CU_MEMORYTYPE_HOST,
				   .dstHost = tested_pinned(),
				   .WidthInBytes = TESTED_BYTES / 1000,
				   .Height = 1000};

	(void)duration_ns;
	return CALL(cuMemcpy2D_v2, &box);
}

static CUresult copy_anything(uint64_t duration_ns)
{
	(void)duration_ns;
	return CALL(cuMemcpyAsync_ptsz, tested_memory(), (CUdeviceptr)(uintptr_t)tested_pinned(),
		    TESTED_BYTES, NULL);
}

/* As a training loop does: the data of the next step beside the kernel of this one. */
static CUresult launch_beside_a_copy(uint64_t duration_ns)
{
	static CUstream beside;
	CUresult result = beside ? CUDA_SUCCESS
				 : CALL(cuStreamCreate, &beside, CU_STREAM_NON_BLOCKING);

	if (!result)
		result = CALL(cuMemcpyHtoDAsync_v2, tested_memory(), tested_pinned(), TESTED_BYTES,
			      beside);
	if (!result)
		result = launch(duration_ns, 0);
	return result ? result : CALL(cuStreamSynchronize, beside);
}

/* A kernel, and a copy that returns before the kernel has ended. */
static CUresult launch_and_feed(uint64_t duration_ns)
{
	const CUresult result = launch(duration_ns, 0);

	return result ? result : CALL(cuMemcpyHtoD_v2, tested_memory(), &duration_ns, 8);
}

static CUresult launch_and_move(uint64_t duration_ns)
{
	const CUresult result = launch(duration_ns, 0);

	return result ? result : CALL(cuMemcpy, tested_memory(), tested_memory() + 4096, 4096);
}

static CUresult launch_graph(uint64_t duration_ns)
{
	(void)duration_ns;
	return CALL(cuGraphLaunch, (CUgraphExec)(uintptr_t)objects[0], NULL);
}

static CUresult launch_graph_per_thread(uint64_t duration_ns)
{
	(void)duration_ns;
	return CALL(cuGraphLaunch_ptsz, (CUgraphExec)(uintptr_t)objects[0], NULL);
}

/* As wrappers do that keep no context of their own: a user more, and again one less. */
static CUresult launch_retained(uint64_t duration_ns)
{
	CUcontext context;
	CUresult result = CALL(cuDevicePrimaryCtxRetain, &context, 0);

	if (!result)
		result = launch(duration_ns, 0);
	return result ? result : CALL(cuDevicePrimaryCtxRelease_v2, 0);
}

/* Work that is out when its context ends. */
static CUresult launch_in_its_own_context(uint64_t duration_ns)
{
	CUcontext context;
	CUresult result = CALL(cuCtxCreate_v2, &context, 0, 0);

	if (result)
		return result;
	result = launch(duration_ns, 0);
	return result ? result : CALL(cuCtxDestroy_v2, context);
}

/* A primary context is not destroyed, whatever a thread asks for. */
static void *destroy_in_vain(void *primary)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	while (CALL(cuCtxDestroy_v2, (CUcontext)primary))
		nanosleep(&pause, NULL);
	return NULL;
}

static CUresult launch_beside_refusals(uint64_t duration_ns)
{
	static pthread_t thread;
	CUcontext context;

	if (!thread && (CALL(cuCtxGetCurrent, &context) ||
			pthread_create(&thread, NULL, destroy_in_vain, context)))
		return CUDA_ERROR_UNKNOWN;
	return launch(duration_ns, 0);
}

/* Launches that took so many steps to return, or longer. */
enum { WAIT_STEPS = 100000, WAIT_STEP_NS = 10000 };
static uint64_t waits[WAIT_STEPS];

static CUresult launch_timed(uint64_t duration_ns)
{
	const uint64_t begin_ns = now_ns();
	const CUresult result = launch_plain(duration_ns);
	const uint64_t steps = (now_ns() - begin_ns) / WAIT_STEP_NS;

	waits[steps < WAIT_STEPS ? steps : WAIT_STEPS - 1]++;
	return result;
}

struct kind {
	const char *name;
	CUresult (*launch)(uint64_t duration_ns);
	int batch; /* launches before they are waited for, or before the host works */
	uint64_t host_ns; /* nobody waits for the launches: the host works so long */
};

static const struct kind kinds[] = {
	{"sync", launch_plain, 1, 0},
	{"stream", launch_plain, 200, 0},
	{"burst", launch_plain, 50, 4000000},
	{"rests", launch_on_streams, 20, 200000000},
	{"paced", launch_timed, 1, 4000000},
	{"at_times", launch_timed, 5, 100000000},
	{"graph", launch_graph, 1, 0},
	{"graph_ptsz", launch_graph_per_thread, 1, 0},
	{"streams", launch_on_streams, 200, 0},
	{"ptsz", launch_per_thread, 200, 0},
	{"ex", launch_ex, 200, 0},
	{"ex_ptsz", launch_ex_per_thread, 200, 0},
	{"cooperative", launch_cooperative, 200, 0},
	{"retained", launch_retained, 200, 0},
	{"contexts", launch_in_its_own_context, 1, 0},
	{"refusals", launch_beside_refusals, 1, 0},
	{"copies", launch_between_copies, 20, 0},
	{"filling", fill, 20, 0},
	{"filling_box", fill_box, 20, 0},
	{"copying", copy_to_card, 1, 0},
	{"copying_async", copy_to_card_in_a_row, 20, 0},
	{"copying_batch", copy_batch_to_card, 20, 0},
	{"copying_behind", copy_behind_many_on_card, 20, 0},
	{"copying_on_card", copy_many_on_card, 20, 0},
	{"copying_at_times", copy_much_on_card, 1, 10000000},
	{"copying_taught", copy_behind_cheap_batch, 20, 0},
	{"copying_boxes", copy_boxes_to_host, 20, 0},
	{"copying_attributes", copy_with_attributes, 20, 0},
	{"copying_box", copy_box_to_host, 1, 0},
	{"copying_unified", copy_anything, 20, 0},
	{"prefetch", launch_beside_a_copy, 1, 0},
	{"feeding", launch_and_feed, 200, 0},
	{"moving", launch_and_move, 200, 0},
	{"cooperative_ptsz", launch_cooperative_per_thread, 200, 0},
};

static const struct kind *kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

/* waits PERMILLE: nanoseconds in which so many of them returned, and how many there were. */
static void do_waits(char *words[])
{
	const uint64_t permille = strtoull(words[1], NULL, 10);
	uint64_t all = 0, some = 0, step = 0;

	for (unsigned i = 0; i < WAIT_STEPS; i++)
		all += waits[i];
	for (; step < WAIT_STEPS && some * 1000 < all * permille; step++)
		some += waits[step];
	printf("0 %" PRIu64 " %" PRIu64 "\n", step * WAIT_STEP_NS, all);
}

/* The program computes something else. In steps, where computing takes no time, it waits. */
static void work_on_host(uint64_t host_ns, bool in_steps)
{
	void (*rest)(uint64_t) = (void (*)(uint64_t))dlsym(driver, "gpusim_sleep_ns");
	const uint64_t end_ns = now_ns() + host_ns;

	if (in_steps && rest)
		rest(host_ns);
	while (now_ns() < end_ns)
		;
}

/*
 * How long the kernels of one function and grid take: UNIT_NS; UNIT_NS/OTHER_NS in turn;
 * UNIT_NS/OTHER_NS/EVERY, each so manieth the other; UNIT_NS-OTHER_NS, from the one to the other
 * in 256 launches, and again; UNIT_NS~OTHER_NS~EVERY, so many of the one, so many of the other.
 */
struct lengths {
	uint64_t unit_ns, other_ns, every;
	bool rises, is_by_phases;
};

static struct lengths read_lengths(const char *word)
{
	struct lengths lengths = {.every = 2};
	char *rest;

	lengths.unit_ns = strtoull(word, &rest, 10);
	lengths.rises = *rest == '-';
	lengths.is_by_phases = *rest == '~';
	if (*rest)
		lengths.other_ns = strtoull(rest + 1, &rest, 10);
	if (*rest)
		lengths.every = strtoull(rest + 1, NULL, 10);
	return lengths;
}

static uint64_t length_ns(const struct lengths *lengths, uint64_t number)
{
	if (lengths->rises)
		return lengths->unit_ns +
		       (lengths->other_ns - lengths->unit_ns) * (number % 256) / 256;
	if (lengths->is_by_phases)
		return number / lengths->every % 2 ? lengths->other_ns : lengths->unit_ns;
	return lengths->other_ns && number % lengths->every == lengths->every - 1
		       ? lengths->other_ns
		       : lengths->unit_ns;
}

/*
 * work KIND LENGTHS SECONDS [TOGETHER [LATER_NS]]: the whole run on the simulated clock, begun
 * so much later; answers with the pieces of UNIT_NS completed and the nanoseconds it took.
 * sync: one kernel after another, each waited for. stream: launched as fast as
 * may be, waited for now and then. graph: the executable graph 0, waited for.
 * The others are streams by other ways to launch.
 */
static void do_work(char *words[])
{
	const struct lengths lengths = read_lengths(words[2]);
	const unsigned together = words[4] ? (unsigned)atoi(words[4]) : 0;
	CUresult result = together ? step_together(together) : CUDA_SUCCESS;

	if (together && words[5])
		work_on_host(strtoull(words[5], NULL, 10), true);
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + (uint64_t)(atof(words[3]) * 1e9);
	const struct kind *kind = kind_of(words[1]);
	uint64_t number = 0, done_ns = 0;

	if (!result && !spin)
		result = make_spin();
	while (kind && !result && now_ns() < end_ns) {
		for (int i = 0; !result && i < kind->batch; i++, number++) {
			done_ns += length_ns(&lengths, number);
			result = kind->launch(length_ns(&lengths, number));
		}
		if (kind->host_ns)
			work_on_host(kind->host_ns, together > 0);
		else if (!result)
			result = CALL(cuCtxSynchronize);
	}
	if (!result)
		result = CALL(cuCtxSynchronize);
	printf("%d %" PRIu64 " %" PRIu64 "\n", result, done_ns / lengths.unit_ns,
	       now_ns() - begin_ns);
	if (together)
		step_apart();
}

/* --- NVML ------------------------------------------------------------------------ */

static void *nvml_library;

static void *find_nvml(const char *name)
{
	if (!nvml_library)
		nvml_library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	return nvml_library ? dlsym(nvml_library, name) : NULL;
}

#define NVML(name, ...) (((__typeof__(name) *)find_nvml(#name))(__VA_ARGS__))

static nvmlReturn_t nvml_card(const char *index, nvmlDevice_t *device)
{
	nvmlReturn_t result = NVML(nvmlInit_v2);

	return result ? result
		      : NVML(nvmlDeviceGetHandleByIndex_v2, index ? (unsigned)atoi(index) : 0,
			     device);
}

static void do_nvml(char *words[])
{
	nvmlDevice_t device;
	nvmlMemory_t memory = {0};
	nvmlReturn_t result = nvml_card(words[1], &device);

	if (!result)
		result = NVML(nvmlDeviceGetMemoryInfo, device, &memory);
	printf("%u %llu %llu %llu\n", (unsigned)result, memory.total, memory.used, memory.free);
}

/* Once more than it may: how often it was ended. */
static void do_nvml_end(char *words[])
{
	int ended = 0;

	(void)words;
	while (NVML(nvmlShutdown) == NVML_SUCCESS)
		ended++;
	printf("%d\n", ended);
}

static void do_nvml2(char *words[])
{
	nvmlDevice_t device;
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	nvmlReturn_t result = nvml_card(words[1], &device);

	if (!result)
		result = NVML(nvmlDeviceGetMemoryInfo_v2, device, &memory);
	printf("%u %llu %llu %llu %llu\n", (unsigned)result, memory.total, memory.used, memory.free,
	       memory.reserved);
}

/* processes VERSION: pid:bytes of each. */
static void do_processes(char *words[])
{
	nvmlDevice_t device;
	nvmlProcessInfo_v1_t infos1[300];
	nvmlProcessInfo_v2_t infos2[300];
	unsigned count = 300;
	const int version = atoi(words[1]);
	nvmlReturn_t result = nvml_card(NULL, &device);

	if (!result && version == 1)
		result = NVML(nvmlDeviceGetComputeRunningProcesses, device, &count, infos1);
	else if (!result && version == 2)
		result = NVML(nvmlDeviceGetComputeRunningProcesses_v2, device, &count, infos2);
	else if (!result)
		result = NVML(nvmlDeviceGetComputeRunningProcesses_v3, device, &count, infos2);
	printf("%u", (unsigned)result);
	for (unsigned i = 0; !result && i < count; i++)
		printf(" %u:%llu", version == 1 ? infos1[i].pid : infos2[i].pid,
		       version == 1 ? infos1[i].usedGpuMemory : infos2[i].usedGpuMemory);
	printf("\n");
}

static void do_pid(char *words[])
{
	(void)words;
	printf("0 %d\n", getpid());
}

/* fork LINE...: the child does the line and ends; its answer is this one's. */
static void run(char *words[]);

static void do_fork(char *words[])
{
	fflush(stdout);
	const pid_t child = fork();

	if (child == 0) {
		run(words + 1);
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void do_vfork(char *words[])
{
	int status = -1;

	(void)words;
	const pid_t child = vfork();

	if (child == 0) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(9);
	}
	waitpid(child, &status, 0);
	printf("%d\n", status);
}

/* exec PROGRAM: this process becomes it. */
static void do_exec(char *words[])
{
	printf("0\n");
	fflush(stdout);
	execv(words[1], words + 1);
	exit(4);
}

/* daemonize FILE: closes what it inherited and opens its log, which takes the first free number. */
static int log_fd = -1;

static void do_daemonize(char *words[])
{
	for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
		close(fd);
	log_fd = open(words[1], O_RDWR | O_CREAT | O_APPEND, 0600);
	printf("0 %d\n", log_fd);
}

/* What a daemon's child does. */
static void do_init_and_log(char *words[])
{
	static const char line[] = "worker started\n";

	do_init(words);
	if (write(log_fd, line, sizeof(line) - 1) < 0)
		printf("-1\n");
}

/* unknown_context NUMBER: made by a call that nobody stands in for; current from now on. */
static void do_unknown_context(char *words[])
{
	CUresult (*make)(CUcontext *, CUdevice) = NULL;
	CUcontext context = NULL;

	*(void **)&make = find("gpusim_unknown_context");
	printf("%d\n", make(&context, 0));
	objects[atoi(words[1]) % OBJECTS] = (uint64_t)(uintptr_t)context;
}

/* loads WAY COUNT: loads so many libraries ("load", "unload": and each goes again), or modules. */
static void do_loads(char *words[])
{
	const unsigned count = (unsigned)atoi(words[2]);
	CUresult result = CUDA_SUCCESS;

	for (unsigned i = 0; i < count && !result; i++) {
		CUlibrary loaded = NULL;
		CUmodule module = NULL;

		if (!strcmp(words[1], "module")) {
			result = CALL(cuModuleLoadData, &module, spin_image);
			continue;
		}
		result = CALL(cuLibraryLoadData, &loaded, spin_image, NULL, NULL, 0, NULL, NULL, 0);
		if (!result && !strcmp(words[1], "unload"))
			result = CALL(cuLibraryUnload, loaded);
	}
	printf("%d\n", result);
}

/* NVML's calls of this process so far, ours and the library's. */
static void do_nvml_calls(char *words[])
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
	uint64_t (*calls)(void) = NULL;

	(void)words;
	if (nvml)
		*(void **)&calls = dlsym(nvml, "gpusim_nvml_calls");
	printf("0 %" PRIu64 "\n", calls ? calls() : 0);
}

struct command {
	const char *name;
	void (*run)(char *words[]);
};

static const struct command commands[] = {
	{"alloc", do_alloc},
	{"managed", do_managed},
	{"pitch", do_pitch},
	{"free", do_free},
	{"churn", do_churn},
	{"create", do_create},
	{"create_at", do_create_at},
	{"release", do_release},
	{"map", do_map},
	{"unmap", do_unmap},
	{"retain_handle", do_retain_handle},
	{"async", do_async},
	{"free_async", do_free_async},
	{"pool", do_pool},
	{"pool_at", do_pool_at},
	{"pool_of", do_pool_of},
	{"pool_export", do_pool_export},
	{"pool_import", do_pool_import},
	{"pool_pointer", do_pool_pointer},
	{"pool_pointer_import", do_pool_pointer_import},
	{"ipc", do_ipc},
	{"ipc_open", do_ipc_open},
	{"ipc_close", do_ipc_close},
	{"create_shared", do_create_shared},
	{"import", do_import},
	{"external", do_external},
	{"pool_default", do_pool_default},
	{"from_pool", do_from_pool},
	{"pool_keep", do_pool_keep},
	{"pool_use", do_pool_use},
	{"pool_trim", do_pool_trim},
	{"pool_destroy", do_pool_destroy},
	{"array", do_array},
	{"array3d", do_array3d},
	{"array_destroy", do_array_destroy},
	{"mipmap", do_mipmap},
	{"mipmap_destroy", do_mipmap_destroy},
	{"host", do_host},
	{"graph", do_graph},
	{"graph_uploaded", do_graph_uploaded},
	{"graph_update", do_graph_update},
	{"kernel_graph", do_kernel_graph},
	{"graph_launch", do_graph_launch},
	{"graph_trim", do_graph_trim},
	{"context", do_context},
	{"context_destroy", do_context_destroy},
	{"context_attach", do_context_attach},
	{"context_detach", do_context_detach},
	{"retain", do_retain},
	{"green", do_green},
	{"green_destroy", do_green_destroy},
	{"green_current", do_green_current},
	{"primary_release", do_primary_release},
	{"reset", do_reset},
	{"module", do_module},
	{"module_unload", do_module_unload},
	{"library", do_library},
	{"library_unload", do_library_unload},
	{"ask", do_ask},
	{"image", do_image},
	{"fat", do_fat},
	{"variables", do_variables},
	{"heap", do_heap},
	{"graph_two", do_graph_two},
	{"graph_destroy", do_graph_destroy},
	{"setenv", do_setenv},
	{"init", do_init},
	{"info", do_info},
	{"info_null", do_info_null},
	{"total", do_total},
	{"count", do_count},
	{"launch", do_launch},
	{"sync", do_sync},
	{"waits", do_waits},
	{"work", do_work},
	{"nvml", do_nvml},
	{"nvml2", do_nvml2},
	{"nvml_end", do_nvml_end},
	{"processes", do_processes},
	{"pid", do_pid},
	{"fork", do_fork},
	{"vfork", do_vfork},
	{"daemonize", do_daemonize},
	{"init_and_log", do_init_and_log},
	{"exec", do_exec},
	{"loads", do_loads},
	{"unknown_context", do_unknown_context},
	{"nvml_calls", do_nvml_calls},
};

static void run(char *words[])
{
	for (size_t i = 0; words[0] && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(commands[i].name, words[0])) {
			commands[i].run(words);
			return;
		}
	printf("-1 no command %s\n", words[0] ? words[0] : "");
}

int main(void)
{
	char line[1024];

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		printf("-1 %s\n", dlerror());
		return 3;
	}
	while (fgets(line, sizeof(line), stdin)) {
		char *words[16] = {0};
		char *rest = NULL;
		int count = 0;

		for (char *word = strtok_r(line, " \n", &rest); word && count < 15;
		     word = strtok_r(NULL, " \n", &rest))
			words[count++] = word;
		run(words);
		fflush(stdout);
	}
	return 0;
}
