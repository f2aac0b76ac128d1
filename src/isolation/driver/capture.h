/*
 * Our own questions to the driver while the application records a graph.
 *
 * A capture in global mode forbids many calls to every thread; between these
 * two the calling thread is exempt, so what we ask does not end somebody's
 * capture. Pair them in one function; threads do not disturb each other.
 */
#pragma once

#include "driver/driver.h"

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
