/*
 * Work that suddenly takes longer than it used to, on a clock that moves in steps.
 *
 *	changing WAY LEARNT_NS SECONDS {DURATION_NS COUNT BLOCKS}...
 *
 * Launches LEARNT_NS for a while, one block, each waited for; then, for SECONDS, in turn COUNT
 * launches of each line, nothing waited for. WAY: plain; paced, with 300 us from one to the next;
 * two, functions in turn; streams, three in turn; graph, one whose kernel is set again.
 *
 * Answers with the driver's result, the thousandths of the whole time in which the card was at
 * work, the busiest ten seconds and the longest stillness, both in milliseconds, and the launches.
 */
#include "call.h"
#include "spin.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEARNING = 500, KINDS = 2, STREAMS = 3, MOST = 1 << 20 };

#define PAUSE_NS 300000u
#define REST_NS 500000000u
#define WINDOW_NS 10000000000u

struct turn {
	uint64_t begin_ns, end_ns;
};

static void *driver;
static CUfunction functions[KINDS];
static CUstream streams[STREAMS];
static CUgraphExec exec;
static CUgraphNode node;
static struct turn turns[MOST];

static uint64_t now_ns(void)
{
	return ((uint64_t(*)(void))dlsym(driver, "gpusim_now_ns"))();
}

static void rest(uint64_t duration_ns)
{
	((void (*)(uint64_t))dlsym(driver, "gpusim_sleep_ns"))(duration_ns);
}

static CUresult prepare(void)
{
	CUcontext context;
	CUmodule module;
	CUgraph graph;
	uint64_t duration_ns = 1;
	void *parameters[] = {&duration_ns};
	CUresult result = CALL(cuInit, 0);

	if (!result)
		result = CALL(cuDevicePrimaryCtxRetain, &context, 0);
	if (!result)
		result = CALL(cuCtxSetCurrent, context);
	for (int i = 0; !result && i < KINDS; i++) {
		result = CALL(cuModuleLoadData, &module, spin_image);
		if (!result)
			result = CALL(cuModuleGetFunction, &functions[i], module, "spin");
	}
	for (int i = 0; !result && i < STREAMS; i++)
		result = CALL(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
	const CUDA_KERNEL_NODE_PARAMS first = kernel_node(functions[0], 1, parameters);

	if (!result)
		result = CALL(cuGraphCreate, &graph, 0);
	if (!result)
		result = CALL(cuGraphAddKernelNode_v2, &node, graph, NULL, 0, &first);
	return result ? result : CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
}

static CUresult launch(const char *way, unsigned number, uint64_t duration_ns, unsigned blocks)
{
	void *parameters[] = {&duration_ns};
	CUfunction function = functions[strcmp(way, "two") ? 0 : number % KINDS];
	CUstream stream = strcmp(way, "streams") ? NULL : streams[number % STREAMS];

	if (!strcmp(way, "graph")) {
		const CUDA_KERNEL_NODE_PARAMS next = kernel_node(functions[0], blocks, parameters);
		const CUresult result = CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, &next);

		return result ? result : CALL(cuGraphLaunch, exec, NULL);
	}
	if (!strcmp(way, "paced"))
		rest(PAUSE_NS);
	return CALL(cuLaunchKernel, function, blocks, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

/* The card takes one piece after another. */
static void note(unsigned number, uint64_t duration_ns)
{
	const uint64_t before_ns = number ? turns[number - 1].end_ns : 0;
	const uint64_t now = now_ns();
	const uint64_t begin_ns = now > before_ns ? now : before_ns;

	turns[number] = (struct turn){begin_ns, begin_ns + duration_ns};
}

/* Card time in the window that ends with this turn. */
static uint64_t had_before(unsigned last)
{
	const uint64_t end_ns = turns[last].end_ns;
	const uint64_t begin_ns = end_ns > WINDOW_NS ? end_ns - WINDOW_NS : 0;
	uint64_t had_ns = 0;

	for (unsigned i = last + 1; i-- > 0 && turns[i].end_ns > begin_ns;)
		had_ns += turns[i].end_ns -
			  (turns[i].begin_ns > begin_ns ? turns[i].begin_ns : begin_ns);
	return had_ns;
}

static void answer(CUresult result, uint64_t took_ns, unsigned count)
{
	uint64_t had_ns = 0, most_ns = 0, still_ns = 0;

	for (unsigned i = 0; i < count; i++) {
		const uint64_t window_ns = had_before(i);

		had_ns += turns[i].end_ns - turns[i].begin_ns;
		most_ns = window_ns > most_ns ? window_ns : most_ns;
		if (i && turns[i].begin_ns - turns[i - 1].end_ns > still_ns)
			still_ns = turns[i].begin_ns - turns[i - 1].end_ns;
	}
	printf("%d %llu %llu %llu %u\n", (int)result, (unsigned long long)(had_ns * 1000 / took_ns),
	       (unsigned long long)(most_ns / 1000000), (unsigned long long)(still_ns / 1000000),
	       count);
}

int main(int count, char **words)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 7 || !driver || prepare() ||
	    ((int (*)(unsigned))dlsym(driver, "gpusim_step_together"))(1))
		return 2;
	const uint64_t learnt_ns = strtoull(words[2], NULL, 10);
	CUresult result = CUDA_SUCCESS;
	unsigned number = 0;

	for (unsigned i = 0; !result && i < LEARNING; i++) {
		result = launch(words[1], i, learnt_ns, 1);
		if (!result)
			result = CALL(cuCtxSynchronize);
	}
	rest(REST_NS);
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + strtoull(words[3], NULL, 10) * 1000000000u;

	for (int line = 4; !result && now_ns() < end_ns && number < MOST;
	     line = line + 5 < count ? line + 3 : 4) {
		const uint64_t duration_ns = strtoull(words[line], NULL, 10);
		const unsigned times = (unsigned)atoi(words[line + 1]);

		for (unsigned i = 0; !result && i < times && now_ns() < end_ns && number < MOST;
		     i++, number++) {
			result = launch(words[1], number, duration_ns,
					(unsigned)atoi(words[line + 2]));
			note(number, duration_ns);
		}
	}
	if (!result)
		result = CALL(cuCtxSynchronize);
	answer(result, now_ns() - begin_ns, number);
	return 0;
}
