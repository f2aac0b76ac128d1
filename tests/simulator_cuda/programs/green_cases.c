/* Green contexts: what they hold alive, and whose their streams and memory are. */
#include "check.h"

static CUgreenCtx green(void)
{
	CUdevResource all;
	CUdevResource part;
	unsigned count = 1;
	CUdevResourceDesc description;
	CUgreenCtx made;

	OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	CHECK_EQUAL(all.sm.smCount, 80);
	OK(cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 7));
	CHECK_EQUAL(part.sm.smCount, 8);
	OK(cuDevResourceGenerateDesc(&description, &part, 1));
	OK(cuGreenCtxCreate(&made, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	return made;
}

static bool is_primary_active(void)
{
	unsigned flags;
	int active;

	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	return active;
}

static void a_green_context_holds_the_primary_one_alive(void)
{
	CUgreenCtx first;
	CUgreenCtx second;

	OK(cuInit(0));
	first = green();
	second = green();
	CHECK(is_primary_active());
	OK(cuGreenCtxDestroy(first));
	CHECK(is_primary_active());
	OK(cuGreenCtxDestroy(second));
	CHECK(!is_primary_active());
	FAILS(cuGreenCtxDestroy(second), CUDA_ERROR_INVALID_CONTEXT);
}

static void its_streams_say_whose_they_are(void)
{
	CUcontext primary = begin();
	CUgreenCtx made = green();
	CUgreenCtx told;
	CUcontext context;
	CUstream work;

	OK(cuGreenCtxStreamCreate(&work, made, CU_STREAM_NON_BLOCKING, 0));
	FAILS(cuStreamGetCtx(work, &context), CUDA_ERROR_NOT_SUPPORTED);
	OK(cuStreamGetCtx_v2(work, &context, &told));
	CHECK(context == primary && told == made);
	OK(cuStreamGetCtx_v2(stream(), &context, &told));
	CHECK(context == primary && !told);
	OK(cuCtxFromGreenCtx(&context, made));
	CHECK(context != primary);
	OK(cuCtxSetCurrent(context));
	OK(cuStreamGetCtx_v2(NULL, &context, &told));
	CHECK(context == primary && told == made);
	OK(cuGreenCtxDestroy(made));
	OK(cuCtxSetCurrent(primary));
	FAILS(cuStreamQuery(work), CUDA_ERROR_INVALID_HANDLE);
	OK(cuStreamDestroy_v2(work));
}

static void its_work_and_memory_are_of_the_primary_context(void)
{
	CUcontext primary = begin();
	CUgreenCtx made = green();
	CUcontext context;
	CUdeviceptr address;
	CUstream work;
	CUevent start = event();
	CUevent end = event();
	size_t before = free_bytes();

	OK(cuGreenCtxStreamCreate(&work, made, CU_STREAM_NON_BLOCKING, 0));
	OK(cuCtxFromGreenCtx(&context, made));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&address, 10 * MIB));
	stop_the_clock();
	OK(cuEventRecord(start, work));
	spin(work, 5000000);
	OK(cuEventRecord(end, work));
	CHECK_NEAR(elapsed_ms(start, end), 5, 0.1);
	spin(NULL, 5000000);
	OK(cuStreamSynchronize(NULL));
	OK(cuCtxSetCurrent(primary));
	OK(cuGreenCtxDestroy(made));
	CHECK_EQUAL(before - free_bytes(), 10 * MIB);
	OK(cuMemFree_v2(address));
}

static void it_is_synchronized_by_itself_and_with_the_primary_one(void)
{
	CUcontext primary = begin();
	CUgreenCtx made = green();
	CUstream work = stream();
	CUcontext context;

	OK(cuCtxFromGreenCtx(&context, made));
	stop_the_clock();
	spin(work, 5000000);
	OK(cuCtxSetCurrent(context));
	OK(cuCtxSynchronize());
	FAILS(cuStreamQuery(work), CUDA_ERROR_NOT_READY);
	spin(NULL, 9000000);
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(NULL));
	spin(NULL, 9000000);
	OK(cuCtxSetCurrent(primary));
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(work));
	OK(cuCtxSetCurrent(context));
	OK(cuStreamQuery(NULL));
}

CASES(CASE(a_green_context_holds_the_primary_one_alive), CASE(its_streams_say_whose_they_are),
      CASE(its_work_and_memory_are_of_the_primary_context),
      CASE(it_is_synchronized_by_itself_and_with_the_primary_one));
