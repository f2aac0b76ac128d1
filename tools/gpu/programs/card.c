/*
 * What is asked of a card, with our library preloaded or without; prints one
 * JSON object. The real driver and the simulated one run the same code.
 *
 *	card fill KIND MOST     linear, physical, pool or managed: allocates until refused or more
 *	                        than MOST bytes are taken (far too much managed memory can hang a
 *	                        card), tells every view, holds it until a line comes in
 *	card hold               starts CUDA, tells how long that took, holds the context
 *	card launches COUNT     nanoseconds of the host a launch of an empty kernel
 *	card allocations COUNT  nanoseconds of 4 KiB allocations and frees
 *	card calibrate NS       turns of the kernel's loop in so many nanoseconds
 *	card solo KIND TURNS    nanoseconds of the card for each such kernel, by events
 *	card work KIND TURNS S  sync, stream or graph: how many kernels of TURNS in S seconds
 *	card empties COUNT      launches COUNT empty kernels; how long that took, and the card for
 *				each when many of them are queued
 *	card export BYTES       allocates, tells a handle of it for other processes, holds it
 *	card import HANDLE      opens such a handle, tells its views, holds it
 *	card graphs COUNT       memory of the card before, with so many executable graphs, and after
 *	card events             what an event costs a stream, and how many launches its queue takes
 *	card turns NS           runs alone for so many nanoseconds of the card; how long it was there and
 *				away in turn
 *	card copies S           how many copies of 32,000,000 bytes from pinned memory in S seconds
 *	card decode TURNS S     says that it is ready and waits for a line; then for S seconds kernels
 *				of TURNS in the shape of a model that writes one token after another
 *	card names              how each name that we stand in for is found
 *
 * CARD_UUID names the card to NVML; CUDA sees it as its device 0.
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1024ull * 1024)
enum { BATCH = 500, STREAM_BATCH = 200, GRAPH_KERNELS = 10, MOST_ALLOCATIONS = 65536 };

/* A loop whose end the compiler cannot foresee: work, not waiting, so that what a neighbour gets
 * of the card makes it longer. */
static char code[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
			   ".visible .entry empty() { ret; }\n"
			   ".visible .entry spin(.param .u64 turns, .param .u64 place)\n"
			   "{\n"
			   "\t.reg .pred %done, %nowhere;\n"
			   "\t.reg .b64 %turns, %place, %turn, %value;\n"
			   "\tld.param.u64 %turns, [turns];\n"
			   "\tld.param.u64 %place, [place];\n"
			   "\tmov.u64 %turn, 0;\n"
			   "\tmov.u64 %value, 1;\n"
			   "\tsetp.eq.u64 %nowhere, %place, 0;\n"
			   "\t@!%nowhere ld.global.u64 %value, [%place];\n"
			   "again:\n"
			   "\tsetp.ge.u64 %done, %turn, %turns;\n"
			   "\t@%done bra after;\n"
			   "\tmad.lo.u64 %value, %value, 6364136223846793005, %turns;\n"
			   "\tadd.u64 %turn, %turn, 1;\n"
			   "\tbra again;\n"
			   "after:\n"
			   "\t@%nowhere ret;\n"
			   "\tst.global.u64 [%place], %value;\n"
			   "\tret;\n"
			   "}\n"
			   /* Looks at the card's clock: where it jumps, another process was there. */
			   ".visible .entry watch(.param .u64 length, .param .u64 place)\n"
			   "{\n"
			   "\t.reg .pred %p;\n"
			   "\t.reg .b64 %end, %place, %now, %last, %step, %count, %at;\n"
			   "\tld.param.u64 %end, [length];\n"
			   "\tld.param.u64 %place, [place];\n"
			   "\tmov.u64 %last, %globaltimer;\n"
			   "\tadd.u64 %end, %end, %last;\n"
			   "\tmov.u64 %count, 0;\n"
			   "\tadd.u64 %at, %place, 16;\n"
			   "again:\n"
			   "\tmov.u64 %now, %globaltimer;\n"
			   "\tsub.u64 %step, %now, %last;\n"
			   "\tsetp.le.u64 %p, %step, 20000;\n"
			   "\t@%p bra next;\n"
			   "\tsetp.ge.u64 %p, %count, 4000;\n"
			   "\t@%p bra next;\n"
			   "\tst.global.u64 [%at], %last;\n"
			   "\tst.global.u64 [%at+8], %now;\n"
			   "\tadd.u64 %at, %at, 16;\n"
			   "\tadd.u64 %count, %count, 1;\n"
			   "next:\n"
			   "\tmov.u64 %last, %now;\n"
			   "\tsetp.lt.u64 %p, %now, %end;\n"
			   "\t@%p bra again;\n"
			   "\tst.global.u64 [%place], %count;\n"
			   "\tret;\n"
			   "}\n";

static void *driver;
static CUdevice device;
static CUcontext context;
static CUmodule module;
static CUfunction empty, spin;
static CUstream stream;

static void fail(const char *what, int result)
{
	fprintf(stderr, "%s: %d\n", what, result);
	exit(1);
}

static void *find(const char *name)
{
	void *function = dlsym(driver, name);

	if (!function)
		fail(name, -1);
	return function;
}

#define CALL(name, ...) (((__typeof__(name) *)find(#name))(__VA_ARGS__))
#define OK(name, ...)                                                                             \
	do {                                                                                      \
		const CUresult result_ = CALL(name, __VA_ARGS__);                                 \
		if (result_)                                                                      \
			fail(#name, result_);                                                     \
	} while (0)

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void start(void)
{
	OK(cuInit, 0);
	OK(cuDeviceGet, &device, 0);
	OK(cuDevicePrimaryCtxRetain, &context, device);
	OK(cuCtxSetCurrent, context);
}

static void load(void)
{
	char *target = strstr(code, "sm_70");

	start();
	/* The oldest that all of CUDA 11 to 12 take; a later driver may have dropped it. */
	if (CALL(cuModuleLoadData, &module, code)) {
		memcpy(target, "sm_75", 5);
		OK(cuModuleLoadData, &module, code);
	}
	OK(cuModuleGetFunction, &empty, module, "empty");
	OK(cuModuleGetFunction, &spin, module, "spin");
	OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
}

static void hold(void)
{
	fflush(stdout);
	(void)getchar();
}

/* --- memory ---------------------------------------------------------------------- */

static CUresult take(const char *kind, size_t bytes)
{
	static CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	if (!strcmp(kind, "linear"))
		return CALL(cuMemAlloc_v2, &pointer, bytes);
	if (!strcmp(kind, "managed"))
		return CALL(cuMemAllocManaged, &pointer, bytes, CU_MEM_ATTACH_GLOBAL);
	if (!strcmp(kind, "pool"))
		return CALL(cuMemAllocAsync, &pointer, bytes, NULL);
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};

	return CALL(cuMemCreate, &handle, bytes, &prop, 0);
}

/* NVML's few declarations that are needed: its header is not on every machine. */
struct nvml_memory {
	unsigned long long total, free, used;
};

static struct nvml_memory nvml_view(void)
{
	struct nvml_memory memory = {0, 0, 0};
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *card;
	int (*init)(void);
	int (*by_uuid)(const char *, void **);
	int (*info)(void *, struct nvml_memory *);

	if (!library)
		fail("libnvidia-ml.so.1", -1);
	*(void **)&init = dlsym(library, "nvmlInit_v2");
	*(void **)&by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
	*(void **)&info = dlsym(library, "nvmlDeviceGetMemoryInfo");
	if (init() || by_uuid(getenv("CARD_UUID"), &card))
		fail("NVML does not know the card", -1);
	const int result = info(card, &memory);

	if (result)
		fail("nvmlDeviceGetMemoryInfo", result);
	return memory;
}

static void do_fill(char *words[])
{
	const size_t sizes[] = {64 * MIB, 16 * MIB, 4 * MIB, 2 * MIB};
	size_t free_bytes = 0, total_bytes = 0, device_bytes = 0;
	const uint64_t most = strtoull(words[1], NULL, 10);
	uint64_t taken = 0, count = 0;
	CUresult refusal = CUDA_SUCCESS;

	start();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		while (taken <= most && count < MOST_ALLOCATIONS && !(refusal = take(words[0], sizes[i]))) {
			taken += sizes[i];
			count++;
		}
	}
	OK(cuMemGetInfo_v2, &free_bytes, &total_bytes);
	OK(cuDeviceTotalMem_v2, &device_bytes, device);
	const struct nvml_memory nvml = nvml_view();

	printf("{\"taken\": %" PRIu64 ", \"refusal\": %d, \"cuda_total\": %zu, \"cuda_free\": %zu, "
	       "\"device_total\": %zu, \"nvml_total\": %llu, \"nvml_free\": %llu, "
	       "\"nvml_used\": %llu}\n",
	       taken, refusal, total_bytes, free_bytes, device_bytes, nvml.total, nvml.free,
	       nvml.used);
	hold();
}

static void do_hold(char *words[])
{
	const uint64_t begin_ns = now_ns();

	(void)words;
	OK(cuInit, 0);
	const uint64_t started_ns = now_ns();

	start();
	printf("{\"init_ns\": %" PRIu64 ", \"context_ns\": %" PRIu64 "}\n", started_ns - begin_ns,
	       now_ns() - started_ns);
	hold();
}

/* --- what a call costs ------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double quantile(double *values, size_t count, double part)
{
	qsort(values, count, sizeof(*values), compare);
	return values[(size_t)(part * (double)(count - 1))];
}

static void do_launches(char *words[])
{
	const size_t batches = strtoul(words[0], NULL, 10) / BATCH;
	double *each_ns = calloc(batches, sizeof(*each_ns));
	__typeof__(cuLaunchKernel) *launch;

	if (!batches || !each_ns)
		fail("too few launches", -1);
	load();
	*(void **)&launch = find("cuLaunchKernel");
	for (size_t i = 0; i < batches; i++) {
		const uint64_t begin_ns = now_ns();

		for (int k = 0; k < BATCH; k++)
			if (launch(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL))
				fail("cuLaunchKernel", -1);
		each_ns[i] = (double)(now_ns() - begin_ns) / BATCH;
		/* Not timed: the queue must never fill, or the card's speed is measured. */
		OK(cuStreamSynchronize, stream);
	}
	printf("{\"p50\": %.1f, \"p99\": %.1f}\n", quantile(each_ns, batches, 0.5),
	       quantile(each_ns, batches, 0.99));
}

static void do_allocations(char *words[])
{
	const size_t count = strtoul(words[0], NULL, 10);
	double *alloc_ns = calloc(count, sizeof(*alloc_ns)), *free_ns = calloc(count, sizeof(*free_ns));
	__typeof__(cuMemAlloc_v2) *allocate;
	__typeof__(cuMemFree_v2) *give;
	CUdeviceptr kept, pointer;

	if (!count || !alloc_ns || !free_ns)
		fail("too few allocations", -1);
	start();
	*(void **)&allocate = find("cuMemAlloc_v2");
	*(void **)&give = find("cuMemFree_v2");
	/* One stays, so that the driver's block does: else every turn would map memory. */
	OK(cuMemAlloc_v2, &kept, 4096);
	for (size_t i = 0; i < count; i++) {
		const uint64_t begin_ns = now_ns();

		if (allocate(&pointer, 4096))
			fail("cuMemAlloc_v2", -1);
		const uint64_t between_ns = now_ns();

		if (give(pointer))
			fail("cuMemFree_v2", -1);
		alloc_ns[i] = (double)(between_ns - begin_ns);
		free_ns[i] = (double)(now_ns() - between_ns);
	}
	printf("{\"alloc_p50\": %.0f, \"alloc_p99\": %.0f, \"free_p50\": %.0f, \"free_p99\": "
	       "%.0f}\n",
	       quantile(alloc_ns, count, 0.5), quantile(alloc_ns, count, 0.99),
	       quantile(free_ns, count, 0.5), quantile(free_ns, count, 0.99));
}

/* --- the card's time --------------------------------------------------------------- */

/* Goes on from the value at that place, if there is one, and leaves its own there. */
static void spin_at(uint64_t turns, CUdeviceptr place)
{
	void *parameters[] = {&turns, &place};

	OK(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void spin_for(uint64_t turns)
{
	spin_at(turns, 0);
}

static uint64_t spin_takes_ns(uint64_t turns)
{
	const uint64_t begin_ns = now_ns();

	spin_for(turns);
	OK(cuStreamSynchronize, stream);
	return now_ns() - begin_ns;
}

static void do_calibrate(char *words[])
{
	const uint64_t wanted_ns = strtoull(words[0], NULL, 10), long_ns = 100000000ull;
	uint64_t turns = 1024, took_ns;

	load();
	/* Long enough that neither the launch nor a clock that still rises matters. */
	while ((took_ns = spin_takes_ns(turns)) < long_ns)
		turns *= 2;
	took_ns = spin_takes_ns(turns);
	printf("{\"turns\": %.0f}\n", (double)turns * (double)wanted_ns / (double)took_ns);
}

static CUgraphExec record(uint64_t turns)
{
	CUgraph graph;
	CUgraphExec exec;

	OK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	for (int i = 0; i < GRAPH_KERNELS; i++)
		spin_for(turns);
	OK(cuStreamEndCapture, stream, &graph);
	OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
	return exec;
}

static double solo_ns(CUgraphExec exec, int launches, uint64_t turns)
{
	CUevent begin, end;
	float took_ms = 0;

	OK(cuEventCreate, &begin, CU_EVENT_DEFAULT);
	OK(cuEventCreate, &end, CU_EVENT_DEFAULT);
	OK(cuEventRecord, begin, stream);
	for (int i = 0; i < launches; i++) {
		if (exec)
			OK(cuGraphLaunch, exec, stream);
		else
			spin_for(turns);
	}
	OK(cuEventRecord, end, stream);
	OK(cuStreamSynchronize, stream);
	OK(cuEventElapsedTime, &took_ms, begin, end);
	return (double)took_ms * 1e6 / launches / (exec ? GRAPH_KERNELS : 1);
}

static void do_solo(char *words[])
{
	enum { ROUNDS = 21 };
	const int launches = !strcmp(words[0], "stream") ? STREAM_BATCH : 1;
	const uint64_t turns = strtoull(words[1], NULL, 10);
	double each_ns[ROUNDS];

	load();
	CUgraphExec exec = !strcmp(words[0], "graph") ? record(turns) : NULL;

	/* The first few only wake the card up. */
	for (int i = 0; i < 2 * ROUNDS; i++)
		each_ns[i % ROUNDS] = solo_ns(exec, launches, turns);
	printf("{\"piece_ns\": %.1f}\n", quantile(each_ns, ROUNDS, 0.5));
}

static void do_work(char *words[])
{
	const bool is_graph = !strcmp(words[0], "graph");
	const int launches = !strcmp(words[0], "stream") ? STREAM_BATCH : 1;
	const uint64_t turns = strtoull(words[1], NULL, 10);
	uint64_t pieces = 0;

	load();
	spin_takes_ns(1);
	CUgraphExec exec = is_graph ? record(turns) : NULL;
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + (uint64_t)(atof(words[2]) * 1e9);

	while (now_ns() < end_ns) {
		for (int i = 0; i < launches; i++) {
			if (is_graph)
				OK(cuGraphLaunch, exec, stream);
			else
				spin_for(turns);
			pieces += is_graph ? GRAPH_KERNELS : 1;
		}
		OK(cuStreamSynchronize, stream);
	}
	printf("{\"pieces\": %" PRIu64 ", \"took_ns\": %" PRIu64 "}\n", pieces,
	       now_ns() - begin_ns);
}

static void launch_empties(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		OK(cuLaunchKernel, empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

/* Behind something long they are all queued, so that the card never waits for a launch. */
static double empty_takes_ns(void)
{
	CUevent begin, end;
	float took_ms = 0;

	OK(cuEventCreate, &begin, CU_EVENT_DEFAULT);
	OK(cuEventCreate, &end, CU_EVENT_DEFAULT);
	spin_for(1u << 24);
	OK(cuEventRecord, begin, stream);
	launch_empties(BATCH);
	OK(cuEventRecord, end, stream);
	OK(cuStreamSynchronize, stream);
	OK(cuEventElapsedTime, &took_ms, begin, end);
	return (double)took_ms * 1e6 / BATCH;
}

static void do_empties(char *words[])
{
	const uint64_t count = strtoull(words[0], NULL, 10);

	load();
	launch_empties(BATCH);
	OK(cuStreamSynchronize, stream);
	const uint64_t begin_ns = now_ns();

	launch_empties(count);
	OK(cuStreamSynchronize, stream);
	const uint64_t took_ns = now_ns() - begin_ns;

	printf("{\"took_ns\": %" PRIu64 ", \"each_ns\": %.1f}\n", took_ns, empty_takes_ns());
}

/* --- between processes -------------------------------------------------------------- */

static void do_export(char *words[])
{
	const size_t bytes = strtoull(words[0], NULL, 10);
	CUipcMemHandle handle;
	CUdeviceptr pointer;

	start();
	OK(cuMemAlloc_v2, &pointer, bytes);
	OK(cuIpcGetMemHandle, &handle, pointer);
	printf("{\"handle\": \"");
	for (size_t i = 0; i < sizeof(handle); i++)
		printf("%02x", ((unsigned char *)&handle)[i]);
	printf("\"}\n");
	hold();
}

static void do_import(char *words[])
{
	size_t before_bytes = 0, free_bytes = 0, total_bytes = 0;
	CUipcMemHandle handle;
	CUdeviceptr pointer;

	for (size_t i = 0; i < sizeof(handle); i++) {
		const char digits[] = {words[0][2 * i], words[0][2 * i + 1], '\0'};

		((unsigned char *)&handle)[i] = (unsigned char)strtoul(digits, NULL, 16);
	}
	start();
	OK(cuMemGetInfo_v2, &before_bytes, &total_bytes);
	const CUresult result = CALL(cuIpcOpenMemHandle_v2, &pointer, handle,
				     CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

	OK(cuMemGetInfo_v2, &free_bytes, &total_bytes);
	printf("{\"result\": %d, \"free_before\": %zu, \"free\": %zu}\n", result, before_bytes,
	       free_bytes);
	hold();
}

/* --- graphs ------------------------------------------------------------------------- */

static size_t used_bytes(void)
{
	size_t free_bytes = 0, total_bytes = 0;

	OK(cuMemGetInfo_v2, &free_bytes, &total_bytes);
	return total_bytes - free_bytes;
}

static void do_graphs(char *words[])
{
	const size_t count = strtoul(words[0], NULL, 10);
	CUgraphExec *made = calloc(count, sizeof(*made));

	if (!count || !made)
		fail("too few graphs", -1);
	load();
	spin_takes_ns(1);
	OK(cuGraphExecDestroy, record(1)); /* what the first one brings for all */
	const size_t before = used_bytes();

	for (size_t i = 0; i < count; i++)
		made[i] = record(1);
	const size_t with = used_bytes();

	for (size_t i = 0; i < count; i++)
		OK(cuGraphLaunch, made[i], stream);
	OK(cuStreamSynchronize, stream);
	const size_t launched = used_bytes();

	for (size_t i = 0; i < count; i++)
		OK(cuGraphExecDestroy, made[i]);
	printf("{\"before\": %zu, \"made\": %zu, \"launched\": %zu, \"after\": %zu}\n", before,
	       with, launched, used_bytes());
}

/* --- what the simulated card assumes --------------------------------------------------- */

enum { EVENTS = 64, TURNS = 4000, COPY_BYTES = 32000000, MOST_QUEUED = 20000 };

static double between_ns(CUevent begin, CUevent end)
{
	float took_ms = 0;

	OK(cuEventElapsedTime, &took_ms, begin, end);
	return (double)took_ms * 1e6;
}

/* Nanoseconds for each of EVENTS steps of a stream, all of them queued behind something long. */
static double queued_ns(CUevent *events, bool has_kernels, bool has_events)
{
	spin_for(1u << 24);
	OK(cuEventRecord, events[0], stream);
	for (int i = 1; i <= EVENTS; i++) {
		if (has_kernels)
			launch_empties(1);
		if (has_events || i == EVENTS)
			OK(cuEventRecord, events[i], stream);
	}
	OK(cuStreamSynchronize, stream);
	return between_ns(events[0], events[EVENTS]) / EVENTS;
}

static int queue_takes(void)
{
	int count = 0;

	spin_for(1u << 30);
	for (uint64_t took_ns = 0; took_ns < 20000000 && count < MOST_QUEUED; count++) {
		const uint64_t begin_ns = now_ns();

		launch_empties(1);
		took_ns = now_ns() - begin_ns;
	}
	OK(cuStreamSynchronize, stream);
	return count - 1;
}

static void do_events(char *words[])
{
	CUevent events[EVENTS + 1];

	(void)words;
	load();
	for (int i = 0; i <= EVENTS; i++)
		OK(cuEventCreate, &events[i], CU_EVENT_DEFAULT);
	queued_ns(events, true, true); /* wakes the card up */
	const double alone_ns = queued_ns(events, true, false);

	printf("{\"event_ns\": %.0f, \"between_kernels_ns\": %.0f, \"kernel_ns\": %.0f, \"queue\": %d}\n",
	       queued_ns(events, false, true), queued_ns(events, true, true) - alone_ns, alone_ns,
	       queue_takes());
}

static void do_turns(char *words[])
{
	static struct {
		uint64_t count, unused, spans[2 * TURNS];
	} seen;
	static double there[TURNS], away[TURNS];
	uint64_t length_ns = strtoull(words[0], NULL, 10);
	CUdeviceptr place;
	CUfunction watch;
	void *parameters[] = {&length_ns, &place};

	load();
	OK(cuModuleGetFunction, &watch, module, "watch");
	OK(cuMemAlloc_v2, &place, sizeof(seen));
	OK(cuLaunchKernel, watch, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
	OK(cuStreamSynchronize, stream);
	OK(cuMemcpyDtoH_v2, &seen, place, sizeof(seen));
	const size_t count = (size_t)seen.count;

	for (size_t i = 0; i < count; i++) {
		away[i] = (double)(seen.spans[2 * i + 1] - seen.spans[2 * i]);
		if (i)
			there[i - 1] = (double)(seen.spans[2 * i] - seen.spans[2 * i - 1]);
	}
	printf("{\"turns\": %zu, \"there_ns\": %.0f, \"away_ns\": %.0f}\n", count,
	       count > 1 ? quantile(there, count - 1, 0.5) : 0,
	       count ? quantile(away, count, 0.5) : 0);
}

static void do_copies(char *words[])
{
	uint64_t pieces = 0;
	CUdeviceptr there;
	void *here;

	load();
	OK(cuMemHostAlloc, &here, COPY_BYTES, 0);
	OK(cuMemAlloc_v2, &there, COPY_BYTES);
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + (uint64_t)(atof(words[0]) * 1e9);

	for (; now_ns() < end_ns; pieces++) {
		OK(cuMemcpyHtoDAsync_v2, there, here, COPY_BYTES, stream);
		OK(cuStreamSynchronize, stream);
	}
	printf("{\"pieces\": %" PRIu64 ", \"took_ns\": %" PRIu64 "}\n", pieces,
	       now_ns() - begin_ns);
}

static void do_decode(char *words[])
{
	enum { LAYERS = 16, KERNELS_OF_A_LAYER = 10, MOST_TOKENS = 65536 };
	static double gaps_ns[MOST_TOKENS];
	static uint32_t tokens[MOST_TOKENS];
	const uint64_t turns = strtoull(words[0], NULL, 10);
	uint64_t token = 1, value;
	size_t count = 0;
	CUdeviceptr place;

	load();
	OK(cuMemAlloc_v2, &place, sizeof(value));
	spin_takes_ns(1);
	printf("{\"ready\": true}\n");
	hold();
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + (uint64_t)(atof(words[1]) * 1e9);
	uint64_t last_ns = begin_ns;

	while (last_ns < end_ns && count < MOST_TOKENS) {
		OK(cuMemcpyHtoDAsync_v2, place, &token, sizeof(token), stream);
		for (int i = 0; i < LAYERS * KERNELS_OF_A_LAYER; i++)
			spin_at(turns, place);
		OK(cuMemcpyDtoHAsync_v2, &value, place, sizeof(value), stream);
		OK(cuStreamSynchronize, stream);
		/* What every kernel made of it decides the next one, as in a model. */
		token = value * 6364136223846793005ull + 1;
		tokens[count] = (uint32_t)(token >> 33);
		gaps_ns[count++] = (double)(now_ns() - last_ns);
		last_ns = now_ns();
	}
	printf("{\"pieces\": %zu, \"took_ns\": %" PRIu64, count, last_ns - begin_ns);
	for (size_t i = 0; i < count; i++)
		printf("%s%" PRIu32, i ? ", " : ", \"tokens\": [", tokens[i]);
	printf("], \"p50_ns\": %.0f, \"p99_ns\": %.0f}\n", quantile(gaps_ns, count, 0.5),
	       quantile(gaps_ns, count, 0.99));
}

/* --- names -------------------------------------------------------------------------- */

static bool is_ours(void *function)
{
	Dl_info object;

	return function && dladdr(function, &object) && strstr(object.dli_fname, "libgpuslice");
}

static void show_name(const char *name, const char *base, int since, cuuint64_t streams)
{
	static bool is_later;
	CUresult (*look)(const char *, void **, int, cuuint64_t);
	CUresult (*look_v2)(const char *, void **, int, cuuint64_t,
			    CUdriverProcAddressQueryResult *);
	CUdriverProcAddressQueryResult status;
	void *address = NULL, *symbol = dlsym(driver, name);

	*(void **)&look = dlsym(driver, "cuGetProcAddress");
	*(void **)&look_v2 = dlsym(driver, "cuGetProcAddress_v2");
	if (look_v2 ? look_v2(base, &address, since, streams, &status)
		    : look(base, &address, since, streams))
		address = NULL;
	printf("%s{\"name\": \"%s\", \"symbol\": %s, \"address\": %s, \"same\": %s, "
	       "\"symbol_ours\": %s, \"address_ours\": %s}",
	       is_later ? ", " : "", name, symbol ? "true" : "false", address ? "true" : "false",
	       symbol == address ? "true" : "false", is_ours(symbol) ? "true" : "false",
	       is_ours(address) ? "true" : "false");
	is_later = true;
}

static void do_names(char *words[])
{
	(void)words;
	start();
	printf("{\"names\": [");
#define LEGACY 1     /* CU_GET_PROC_ADDRESS_LEGACY_STREAM */
#define PER_THREAD 2 /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
#define CUDA_HOOK(name, base, since, streams) show_name(#name, base, since, streams);
#include "driver/symbols.def"
	printf("]}\n");
}

int main(int count, char *words[])
{
	static const struct {
		const char *name;
		int words;
		void (*run)(char *[]);
	} commands[] = {
		{"fill", 2, do_fill},           {"hold", 0, do_hold},
		{"launches", 1, do_launches},   {"allocations", 1, do_allocations},
		{"calibrate", 1, do_calibrate}, {"solo", 2, do_solo},
		{"work", 3, do_work},           {"empties", 1, do_empties},
		{"export", 1, do_export},       {"import", 1, do_import},
		{"graphs", 1, do_graphs},       {"names", 0, do_names},
		{"events", 0, do_events},       {"turns", 1, do_turns},
		{"copies", 1, do_copies},       {"decode", 2, do_decode},
	};

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		fail(dlerror(), -1);
	for (size_t i = 0; count > 1 && i < sizeof(commands) / sizeof(*commands); i++)
		if (!strcmp(commands[i].name, words[1]) && count == commands[i].words + 2) {
			commands[i].run(words + 2);
			return 0;
		}
	fprintf(stderr, "see the first lines of card.c\n");
	return 2;
}
