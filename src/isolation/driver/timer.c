/* Time, and the one place where the test build differs: it can live in simulated time. */
#include "driver/timer.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#ifdef GPUSLICE_TESTING
#include "driver/libc_symbols.h"

#include <stdbool.h>

/* A thread's own: those that come here together do not race. */
static __thread struct {
	uint64_t (*now)(void);
	void (*sleep)(uint64_t);
	void (*spin)(uint64_t);
} simulated;

static bool is_simulated(void)
{
	const struct libc_symbols *libc = libc_symbols();

	if (!simulated.spin) {
		void *driver = libc->dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

		if (!driver)
			return false;
		*(void **)&simulated.now = libc->dlsym(driver, "gpusim_now_ns");
		*(void **)&simulated.sleep = libc->dlsym(driver, "gpusim_sleep_ns");
		*(void **)&simulated.spin = libc->dlsym(driver, "gpusim_spin_ns");
	}
	return simulated.spin;
}
#define IF_SIMULATED(...)                                                                          \
	if (is_simulated())                                                                        \
	__VA_ARGS__
#else
#define IF_SIMULATED(...)
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
	IF_SIMULATED(return simulated.now();)
	return timer_real_now_ns();
}

void timer_sleep_ns(uint64_t duration_ns)
{
	struct timespec left = span(duration_ns);

	IF_SIMULATED({
		simulated.sleep(duration_ns);
		return;
	})
	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
		;
}

void timer_spin_ns(uint64_t duration_ns)
{
	IF_SIMULATED({
		simulated.spin(duration_ns);
		return;
	})
	const uint64_t end_ns = timer_real_now_ns() + duration_ns;

	while (timer_real_now_ns() < end_ns)
		sched_yield();
}
