/*
 * Work on one stream while another waits for the program, on a clock that moves in steps.
 *
 *	waiting UNIT_NS SECONDS BEHIND TOGETHER [STREAMS]
 *
 * A stream (or so many) waits for a word of memory, and BEHIND kernels of UNIT_NS behind that; on another stream kernels
 * of UNIT_NS are launched for SECONDS, each waited for. Then the word is written. The clock is shared with
 * as many programs as TOGETHER says.
 *
 * Answers with the driver's result, the kernels of the second stream, and the nanoseconds they took.
 */
#include "call.h"
#include "spin.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEARNING = 500 };

static void *driver;
static CUfunction function;
static CUstream waiting[16], working;
static CUdeviceptr word;

static uint64_t now_ns(void)
{
	return ((uint64_t(*)(void))dlsym(driver, "gpusim_now_ns"))();
}

static CUresult prepare(void)
{
	CUcontext context;
	CUmodule module;
	CUresult result = CALL(cuInit, 0);

	if (!result)
		result = CALL(cuDevicePrimaryCtxRetain, &context, 0);
	if (!result)
		result = CALL(cuCtxSetCurrent, context);
	if (!result)
		result = CALL(cuModuleLoadData, &module, spin_image);
	if (!result)
		result = CALL(cuModuleGetFunction, &function, module, "spin");
	for (int i = 0; !result && i < 16; i++)
		result = CALL(cuStreamCreate, &waiting[i], CU_STREAM_NON_BLOCKING);
	if (!result)
		result = CALL(cuStreamCreate, &working, CU_STREAM_NON_BLOCKING);
	if (!result)
		result = CALL(cuMemAlloc_v2, &word, 4);
	return result ? result : CALL(cuMemsetD32_v2, word, 0, 1);
}

static CUresult launch(CUstream stream, uint64_t duration_ns)
{
	void *parameters[] = {&duration_ns};

	return CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static CUresult work(uint64_t duration_ns)
{
	const CUresult result = launch(working, duration_ns);

	return result ? result : CALL(cuStreamSynchronize, working);
}

int main(int count, char **words)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count < 5 || !driver || prepare() ||
	    ((int (*)(unsigned))dlsym(driver, "gpusim_step_together"))((unsigned)atoi(words[4])))
		return 2;
	const uint64_t unit_ns = strtoull(words[1], NULL, 10);
	const int streams = count > 5 ? atoi(words[5]) % 17 : 1;
	CUresult result = CUDA_SUCCESS;
	uint64_t pieces = 0;

	for (int i = 0; !result && i < LEARNING; i++)
		result = work(unit_ns);
	for (int i = 0; !result && i < streams; i++) {
		result = CALL(cuStreamWaitValue32_v2, waiting[i], word, 1,
			      CU_STREAM_WAIT_VALUE_GEQ);
		for (int behind = atoi(words[3]); !result && behind > 0; behind--)
			result = launch(waiting[i], unit_ns);
	}
	const uint64_t begin_ns = now_ns();
	const uint64_t end_ns = begin_ns + strtoull(words[2], NULL, 10) * 1000000000u;

	for (; !result && now_ns() < end_ns; pieces++)
		result = work(unit_ns);
	const uint64_t took_ns = now_ns() - begin_ns;

	if (!result)
		result = CALL(cuStreamWriteValue32_v2, working, word, 1, 0);
	if (!result)
		result = CALL(cuCtxSynchronize);
	printf("%d %llu %llu\n", (int)result, (unsigned long long)pieces,
	       (unsigned long long)took_ns);
	return 0;
}
