/* A driver that gives out what dlsym finds, and has a version of cuMemAlloc that is new. */
#define NEWER
#include "libfuture.c" /* NOLINT(bugprone-suspicious-include) */
