/* Streams by the names that every process knows. */
#pragma once

#include "driver/driver.h"

#include <stdbool.h>
#include <stddef.h>

/* The default streams belong to whatever context is current. */
static inline bool stream_is_default(CUstream stream)
{
	return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* What the functions of the per-thread default stream mean by a stream. */
static inline CUstream stream_per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}
