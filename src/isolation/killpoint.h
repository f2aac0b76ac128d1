/*
 * Named places at which the test build of this library can be made to die, as
 * a SIGKILL may strike anywhere. Nothing in the library that is shipped.
 */
#ifndef GPUSLICE_KILLPOINT_H
#define GPUSLICE_KILLPOINT_H

#ifdef GPUSLICE_TESTING
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#define KILLPOINT(name)                                                  \
	do {                                                             \
		const char *wanted_ = getenv("GPUSLICE_KILLPOINT");      \
		if (wanted_ && strcmp(wanted_, #name) == 0)              \
			raise(SIGKILL);                                  \
	} while (0)
#else
#define KILLPOINT(name) ((void)0)
#endif

#endif
