/*
 * Named places at which the test build of this library can be made to die, as
 * a SIGKILL may strike anywhere, or to wait (tests/isolation/killpoint.c). Nothing in the
 * library that is shipped.
 */
#pragma once

#ifdef GPUSLICE_TESTING
void killpoint(const char *name);
#define KILLPOINT(name) killpoint(#name)
#define PAUSEPOINT(name) killpoint(#name) /* only to wait at: a death there is as one before */
#else
#define KILLPOINT(name) ((void)0)
#define PAUSEPOINT(name) ((void)0)
#endif
