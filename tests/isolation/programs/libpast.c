/* A driver without cuMemGetInfo_v2, without which no slice can be kept. */
#define PAST
#include "libfuture.c" /* NOLINT(bugprone-suspicious-include) */
