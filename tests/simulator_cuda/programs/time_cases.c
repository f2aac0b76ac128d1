/* Kernels take virtual time, events tell it, streams order it. */
#include "check.h"

#include <pthread.h>
#include <time.h>

static void events_enclose_the_kernels_between_them(void)
{
	CUstream work;
	CUevent start;
	CUevent end;

	begin();
	work = stream();
	start = event();
	end = event();
	hold_back(work);
	OK(cuEventRecord(start, work));
	for (int i = 0; i < 100; i++)
		spin(work, 1000000);
	OK(cuEventRecord(end, work));
	FAILS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
	CHECK_NEAR(elapsed_ms(start, end), 100, 0.5);
	OK(cuEventQuery(end));
}

static void a_kernels_name_says_how_long_it_takes(void)
{
	CUstream work;
	CUevent start;
	CUevent end;

	begin();
	work = stream();
	start = event();
	end = event();
	hold_back(work);
	OK(cuEventRecord(start, work));
	OK(cuLaunchKernel(kernel("spin_50000"), 1, 1, 1, 1, 1, 1, 0, work, NULL, NULL));
	OK(cuEventRecord(end, work));
	CHECK_NEAR(elapsed_ms(start, end), 50, 0.5);
}

static void packed_parameters_say_it_too(void)
{
	uint64_t ns = 20000000;
	size_t bytes = sizeof(ns);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
			 CU_LAUNCH_PARAM_END};
	CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
	CUevent start;
	CUevent end;

	begin();
	config.hStream = stream();
	start = event();
	end = event();
	hold_back(config.hStream);
	OK(cuEventRecord(start, config.hStream));
	OK(cuLaunchKernelEx(&config, kernel("spin"), NULL, extra));
	OK(cuEventRecord(end, config.hStream));
	CHECK_NEAR(elapsed_ms(start, end), 20, 0.5);
}

static void two_streams_of_a_process_share_the_card(void)
{
	CUstream one;
	CUstream other;
	CUevent start;
	CUevent first_end;
	CUevent second_end;

	begin();
	one = stream();
	other = stream();
	start = event();
	first_end = event();
	second_end = event();
	hold_back(one);
	hold_back(other);
	OK(cuEventRecord(start, one));
	spin(one, 20000000);
	spin(other, 60000000);
	OK(cuEventRecord(first_end, one));
	OK(cuEventRecord(second_end, other));
	CHECK_NEAR(elapsed_ms(start, first_end), 40, 1);
	CHECK_NEAR(elapsed_ms(start, second_end), 80, 1);
}

static void a_stream_waits_for_an_event_of_another(void)
{
	CUstream one;
	CUstream other;
	CUevent start;
	CUevent middle;
	CUevent end;

	begin();
	one = stream();
	other = stream();
	start = event();
	middle = event();
	end = event();
	hold_back(one);
	hold_back(other);
	OK(cuEventRecord(start, one));
	spin(one, 30000000);
	OK(cuEventRecord(middle, one));
	OK(cuStreamWaitEvent(other, middle, 0));
	spin(other, 10000000);
	OK(cuEventRecord(end, other));
	CHECK_NEAR(elapsed_ms(start, end), 40, 1);
}

static void the_legacy_stream_waits_for_blocking_streams_and_they_for_it(void)
{
	CUstream blocking;
	CUevent start;
	CUevent end;

	begin();
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	start = event();
	end = event();
	hold_back(blocking);
	OK(cuEventRecord(start, blocking));
	spin(blocking, 10000000);
	spin(NULL, 10000000);
	spin(blocking, 10000000);
	OK(cuEventRecord(end, blocking));
	CHECK_NEAR(elapsed_ms(start, end), 30, 1);
}

static void the_per_thread_stream_is_another_than_the_legacy_one(void)
{
	uint64_t ns = 30000000;
	void *parameters[] = {&ns};

	begin();
	stop_the_clock();
	OK(cuLaunchKernel_ptsz(kernel("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
	FAILS(cuStreamQuery_ptsz(NULL), CUDA_ERROR_NOT_READY);
	FAILS(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	OK(cuStreamQuery(CU_STREAM_LEGACY));
	OK(cuStreamSynchronize_ptsz(NULL));
}

static int calls;

static void call(void *argument)
{
	calls += *(int *)argument;
}

static void a_host_function_runs_when_the_stream_gets_there(void)
{
	CUstream work;
	int step = 3;

	begin();
	work = stream();
	hold_back(work);
	OK(cuLaunchHostFunc(work, call, &step));
	spin(work, 1000000);
	CHECK_EQUAL(calls, 0);
	OK(cuStreamSynchronize(work));
	CHECK_EQUAL(calls, 3);
}

static void a_long_queue_is_waited_for_in_order(void)
{
	CUstream work;
	CUevent start;
	CUevent end;

	begin();
	work = stream();
	start = event();
	end = event();
	hold_back(work);
	OK(cuEventRecord(start, work));
	for (int i = 0; i < 5000; i++)
		spin(work, 10000);
	OK(cuEventRecord(end, work));
	CHECK_NEAR(elapsed_ms(start, end), 50, 0.5);
}

static void more_events_than_a_stream_remembers_keep_their_times(void)
{
	static CUevent events[1000];
	CUstream work;

	begin();
	work = stream();
	hold_back(work);
	for (int i = 0; i < 1000; i++) {
		events[i] = event();
		OK(cuEventRecord(events[i], work));
		spin(work, 20000);
	}
	OK(cuStreamSynchronize(work));
	for (int i = 1; i < 1000; i++)
		CHECK_NEAR(elapsed_ms(events[i - 1], events[i]), 0.02, 0.005);
}

static void a_destroyed_streams_work_still_counts(void)
{
	CUstream work;
	CUevent start;
	CUevent end;

	begin();
	work = stream();
	start = event();
	end = event();
	hold_back(work);
	OK(cuEventRecord(start, work));
	spin(work, 20000000);
	OK(cuEventRecord(end, work));
	OK(cuStreamDestroy_v2(work));
	CHECK_NEAR(elapsed_ms(start, end), 20, 0.5);
}

static void events_without_timing_or_record_have_no_time(void)
{
	CUevent plain;
	CUevent never;
	CUevent silent;
	float milliseconds;

	begin();
	plain = event();
	never = event();
	OK(cuEventCreate(&silent, CU_EVENT_DISABLE_TIMING));
	OK(cuEventRecord(plain, NULL));
	OK(cuEventRecord(silent, NULL));
	OK(cuCtxSynchronize());
	FAILS(cuEventElapsedTime(&milliseconds, plain, silent), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cuEventElapsedTime(&milliseconds, plain, never), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventQuery(never));
}

static void the_virtual_clock_runs_as_fast_as_asked(void)
{
	uint64_t before;

	begin();
	before = gpusim_now_ns();
	gpusim_sleep_ns(50000000);
	CHECK(gpusim_now_ns() - before >= 50000000);
}

/* Sleeps ten times a millisecond, then reports when it was done. */
static void *sleep_in_steps(void *done_ns)
{
	CHECK(gpusim_step_together(2) == 0);
	for (int i = 0; i < 10; i++)
		gpusim_sleep_ns(1000000);
	*(uint64_t *)done_ns = gpusim_now_ns();
	gpusim_step_apart();
	return NULL;
}

/* While one computes for however long, no time passes for the other. */
static void time_in_steps_stands_still_while_anybody_runs(void)
{
	const struct timespec long_for_a_machine = {.tv_nsec = 300000000};
	uint64_t done_ns, before, after;
	pthread_t other;

	begin();
	CHECK(pthread_create(&other, NULL, sleep_in_steps, &done_ns) == 0);
	CHECK(gpusim_step_together(2) == 0);
	before = gpusim_now_ns();
	nanosleep(&long_for_a_machine, NULL);
	CHECK(gpusim_now_ns() == before);
	gpusim_sleep_ns(5000000);
	after = gpusim_now_ns();
	CHECK(after - before >= 5000000 && after - before < 5200000);
	gpusim_step_apart();
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(done_ns - before >= 10000000 && done_ns - before < 11000000);
}

CASES(CASE(events_enclose_the_kernels_between_them), CASE(a_kernels_name_says_how_long_it_takes),
      CASE(packed_parameters_say_it_too), CASE(two_streams_of_a_process_share_the_card),
      CASE(a_stream_waits_for_an_event_of_another),
      CASE(the_legacy_stream_waits_for_blocking_streams_and_they_for_it),
      CASE(the_per_thread_stream_is_another_than_the_legacy_one),
      CASE(a_host_function_runs_when_the_stream_gets_there),
      CASE(a_long_queue_is_waited_for_in_order),
      CASE(more_events_than_a_stream_remembers_keep_their_times),
      CASE(a_destroyed_streams_work_still_counts),
      CASE(events_without_timing_or_record_have_no_time),
      CASE(the_virtual_clock_runs_as_fast_as_asked),
      CASE(time_in_steps_stands_still_while_anybody_runs));
