/*
 * A wall clock that jumps: preloaded into the agent, it adds the seconds in the file named by
 * CLOCK_OFFSET to CLOCK_REALTIME, and to no other clock. One thread may write the file while
 * others read; a torn read is a number all the same.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long offset_seconds(void)
{
	char text[32] = {0};
	const char *path = getenv("CLOCK_OFFSET");
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
		now->tv_sec += offset_seconds();
	return result;
}
