/* Streams: the names that every process knows, and what a stream records. */
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

/*
 * Questions of this library to the driver while the application records a graph.
 *
 * A capture in global mode forbids many calls to every thread; between these
 * two the calling thread is exempt, so that these questions do not end a
 * capture. Pair them in one function; threads do not disturb each other.
 */
static inline CUstreamCaptureMode capture_exempt(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (cuda.cuThreadExchangeStreamCaptureMode)
		cuda.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

static inline void capture_restore(CUstreamCaptureMode mode)
{
	if (cuda.cuThreadExchangeStreamCaptureMode)
		cuda.cuThreadExchangeStreamCaptureMode(&mode);
}

/* What is put into this stream now is recorded, not run; in doubt yes: then it is left alone. */
static inline bool capture_has(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return cuda.cuStreamIsCapturing &&
	       (cuda.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
		status != CU_STREAM_CAPTURE_STATUS_NONE);
}
