/* Dying on demand, in the test build; in the one that is shipped this file is empty. */
#include "killpoint.h"

#ifdef GPUSLICE_TESTING

#include <signal.h>
#include <stdlib.h>
#include <string.h>

void killpoint(const char *name)
{
	/* Nobody changes the environment of a test program. */
	const char *wanted = getenv("GPUSLICE_KILLPOINT"); /* NOLINT(concurrency-mt-unsafe) */

	if (wanted && strcmp(wanted, name) == 0)
		(void)raise(SIGKILL);
}

#else

/* A translation unit must not be empty. */
typedef int killpoint_unused;

#endif
