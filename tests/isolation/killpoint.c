/* Dying and waiting on demand: in the test build of the library only. */
#include "slice/killpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Nobody changes the environment of a test program. */
static const char *setting(const char *name)
{
	return getenv(name); /* NOLINT(concurrency-mt-unsafe) */
}

/* A file tells that it waits, until somebody removes it. */
static void pause_with(const char *path)
{
	const struct timespec nap = {.tv_nsec = 1000000};

	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
	while (access(path, F_OK) == 0)
		nanosleep(&nap, NULL);
}

void killpoint(const char *name)
{
	const char *deadly = setting("GPUSLICE_KILLPOINT");
	const char *slow = setting("GPUSLICE_PAUSEPOINT");
	const char *path = setting("GPUSLICE_PAUSEFILE");

	if (deadly && strcmp(deadly, name) == 0)
		(void)raise(SIGKILL);
	if (slow && path && strcmp(slow, name) == 0)
		pause_with(path);
}
