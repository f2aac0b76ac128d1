/*
 * A test program is a list of cases; `program --list` names them and
 * `program NAME` runs one in a fresh process. A check that fails ends it with
 * its line and what was there.
 */
#ifndef CHECK_H
#define CHECK_H

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024ull * 1024ull)

uint64_t gpusim_now_ns(void);
void gpusim_sleep_ns(uint64_t virtual_ns);
int gpusim_step_together(unsigned count);
void gpusim_step_apart(void);

struct test_case {
	const char *name;
	void (*run)(void);
};

extern const struct test_case cases[];

#define CASES(...) const struct test_case cases[] = {__VA_ARGS__, {NULL, NULL}}
#define CASE(name)                                                                                 \
	{                                                                                          \
#name, name                                                                        \
	}

#define CHECK(condition) check((condition), __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(left, right)                                                                   \
	check_equal((long long)(left), (long long)(right), __FILE__, __LINE__, #left " == " #right)
#define CHECK_NEAR(value, wanted, tolerance)                                                       \
	check_near((double)(value), (double)(wanted), (double)(tolerance), __FILE__, __LINE__,     \
		   #value)
#define OK(call) check_equal((call), CUDA_SUCCESS, __FILE__, __LINE__, #call)
#define FAILS(call, error) check_equal((call), (error), __FILE__, __LINE__, #call)

static inline void check(bool holds, const char *file, int line, const char *text)
{
	if (holds)
		return;
	fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
	exit(1);
}

static inline void check_equal(long long left, long long right, const char *file, int line,
			       const char *text)
{
	if (left == right)
		return;
	fprintf(stderr, "%s:%d: %s: %lld is not %lld\n", file, line, text, left, right);
	exit(1);
}

static inline void check_near(double value, double wanted, double tolerance, const char *file,
			      int line, const char *text)
{
	if (value >= wanted - tolerance && value <= wanted + tolerance)
		return;
	fprintf(stderr, "%s:%d: %s is %f, not %f within %f\n", file, line, text, value, wanted,
		tolerance);
	exit(1);
}

/* A context on the first device, current. */
static inline CUcontext begin(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

static inline size_t free_bytes(void)
{
	size_t free_now;
	size_t total;

	OK(cuMemGetInfo_v2(&free_now, &total));
	return free_now;
}

/* A kernel's name says how long it takes (src/simulator/cuda/module.h). */
static const char code[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
			   ".visible .entry spin(.param .u64 ns) { ret; }\n"
			   ".entry spin_1() { ret; }\n.entry spin_3000() { ret; }\n"
			   ".entry spin_5000() { ret; }\n.entry spin_15000() { ret; }\n"
			   ".entry spin_25000() { ret; }\n.entry spin_50000() { ret; }\n";

static inline CUfunction kernel(const char *name)
{
	static CUmodule module;
	CUfunction function;

	if (!module)
		OK(cuModuleLoadData(&module, code));
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* A kernel of `ns` nanoseconds on an idle card. */
static inline void spin(CUstream stream, uint64_t ns)
{
	void *parameters[] = {&ns};

	OK(cuLaunchKernel(kernel("spin"), 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static inline CUevent event(void)
{
	CUevent made;

	OK(cuEventCreate(&made, CU_EVENT_DEFAULT));
	return made;
}

static inline CUstream stream(void)
{
	CUstream made;

	OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
	return made;
}

/*
 * From here on no time passes while this thread computes, only while it waits
 * (steps.h): however slow or loaded the machine is, nothing runs in between.
 */
static inline void stop_the_clock(void)
{
	static bool is_stopped;

	if (!is_stopped)
		CHECK(gpusim_step_together(1) == 0);
	is_stopped = true;
}

/*
 * A stream whose work begins only in a while, so that everything the test
 * queues is there before any of it runs.
 */
static inline void hold_back(CUstream held)
{
	static CUevent opened;

	stop_the_clock();
	if (!opened) {
		CUstream gate = stream();

		opened = event();
		spin(gate, 150000000);
		OK(cuEventRecord(opened, gate));
	}
	OK(cuStreamWaitEvent(held, opened, 0));
}

static inline double elapsed_ms(CUevent start, CUevent end)
{
	float milliseconds;

	OK(cuEventSynchronize(end));
	OK(cuEventElapsedTime(&milliseconds, start, end));
	return milliseconds;
}

#ifndef NO_MAIN
int main(int count, char **words)
{
	for (const struct test_case *each = cases; each->name; each++) {
		if (count == 2 && strcmp(words[1], "--list") == 0)
			puts(each->name);
		else if (count == 2 && strcmp(words[1], each->name) == 0)
			return each->run(), 0;
	}
	return count == 2 && strcmp(words[1], "--list") == 0 ? 0 : 2;
}
#endif

#endif
