/*
 * Clocks that jump: preloaded into the agent, it adds the seconds in the file named by
 * CLOCK_OFFSET to CLOCK_REALTIME; where BOOT_SECONDS names a file, that is CLOCK_BOOTTIME. No other
 * clock changes. One thread may write a file while others read; a torn read is a number all the same.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long offset_seconds(const char *variable)
{
	char text[32] = {0};
	const char *path = getenv(variable);
	int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (descriptor < 0)
		return 0;
	if (read(descriptor, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(descriptor);
	return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int result = (int)syscall(SYS_clock_gettime, clock, now);

	if (result == 0 && clock == CLOCK_REALTIME)
		now->tv_sec += offset_seconds("CLOCK_OFFSET");
	if (result == 0 && clock == CLOCK_BOOTTIME && getenv("BOOT_SECONDS"))
		*now = (struct timespec){offset_seconds("BOOT_SECONDS"), 0};
	return result;
}
