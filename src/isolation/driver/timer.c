/* Time, and the one place where the test build differs: it can live in simulated time. */
#include "driver/timer.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#ifdef GPUSLICE_TESTING
#include "driver/libc_symbols.h"

#include <dlfcn.h>

static void *simulated(const char *name)
{
	const struct libc_symbols *libc = libc_symbols();
	void *driver = libc->dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

	return driver ? libc->dlsym(driver, name) : NULL;
}
#endif

uint64_t timer_real_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct timespec span(uint64_t duration_ns)
{
	return (struct timespec){.tv_sec = (time_t)(duration_ns / 1000000000u),
				 .tv_nsec = (long)(duration_ns % 1000000000u)};
}

void timer_real_nap(uint64_t duration_ns)
{
	const struct timespec time = span(duration_ns);

	nanosleep(&time, NULL);
}

uint64_t timer_now_ns(void)
{
#ifdef GPUSLICE_TESTING
	static uint64_t (*simulated_now)(void);

	if (!simulated_now)
		*(void **)&simulated_now = simulated("gpusim_now_ns");
	if (simulated_now)
		return simulated_now();
#endif
	return timer_real_now_ns();
}

void timer_sleep_ns(uint64_t duration_ns)
{
	struct timespec left = span(duration_ns);

#ifdef GPUSLICE_TESTING
	static void (*simulated_sleep)(uint64_t);

	if (!simulated_sleep)
		*(void **)&simulated_sleep = simulated("gpusim_sleep_ns");
	if (simulated_sleep) {
		simulated_sleep(duration_ns);
		return;
	}
#endif
	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
		;
}

void timer_spin_ns(uint64_t duration_ns)
{
#ifdef GPUSLICE_TESTING
	static void (*simulated_spin)(uint64_t);

	if (!simulated_spin)
		*(void **)&simulated_spin = simulated("gpusim_spin_ns");
	if (simulated_spin) {
		simulated_spin(duration_ns);
		return;
	}
#endif
	const uint64_t end_ns = timer_real_now_ns() + duration_ns;

	while (timer_real_now_ns() < end_ns)
		sched_yield();
}
