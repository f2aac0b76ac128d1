/* The streams' entry points that do not start work. */
#include "capture.h"
#include "event.h"
#include "pool.h"
#include "stream.h"

#include <stddef.h>

static CUresult create(CUstream *handle, unsigned flags, int priority)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || flags > CU_STREAM_NON_BLOCKING)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_make(context, flags, priority, &stream);
	if (result == CUDA_SUCCESS)
		*handle = (CUstream)(void *)stream;
	return driver_leave(result);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	return create(stream, flags, 0);
}

/* Priorities out of range are clamped, as documented. */
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	if (priority > 0)
		priority = 0;
	return create(stream, flags, priority < -5 ? -5 : priority);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

/* Enters and finds the stream; the caller leaves when this succeeds. */
static CUresult enter_stream(CUstream handle, enum default_stream null, struct stream **stream)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_find(context, handle, null, stream);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

/* To ask whether, or wait until, captured work is done makes no sense. */
static CUresult refuse_capturing(const struct stream *stream)
{
	if (stream->capture)
		return capture_invalidate(stream->capture);
	return capture_refuse_implicit(stream);
}

static CUresult query(CUstream handle, enum default_stream null)
{
	struct stream *stream;
	uint64_t left_ns;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = refuse_capturing(stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	return driver_leave(stream_is_idle(stream, &left_ns) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

static CUresult synchronize(CUstream handle, enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = refuse_capturing(stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (stream->is_default)
		context_wait(stream->context);
	else
		stream_wait(stream);
	pools_release_unused(stream->context->device);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult wait_event(CUstream handle, CUevent event_handle, unsigned flags,
			   enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	struct event *event = event_of(event_handle);
	if (flags > CU_EVENT_WAIT_EXTERNAL)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!event)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	return driver_leave(event_precede(event, stream));
}

CUresult cuStreamQuery(CUstream stream)
{
	return query(stream, LEGACY);
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	return query(stream, PER_THREAD);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	return synchronize(stream, LEGACY);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return synchronize(stream, PER_THREAD);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	return wait_event(stream, event, flags, LEGACY);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
	return wait_event(stream, event, flags, PER_THREAD);
}

/* One number of a stream, by a function each: the entry points differ in nothing else. */
#define STREAM_PROPERTY(name, type, value)                                                         \
	static CUresult name##_of(CUstream handle, type *property, enum default_stream null)       \
	{                                                                                          \
		struct stream *stream;                                                             \
		CUresult result = enter_stream(handle, null, &stream);                             \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		if (!property)                                                                     \
			return driver_leave(CUDA_ERROR_INVALID_VALUE);                             \
		*property = (value);                                                               \
		return driver_leave(CUDA_SUCCESS);                                                 \
	}                                                                                          \
	CUresult name(CUstream handle, type *property)                                             \
	{                                                                                          \
		return name##_of(handle, property, LEGACY);                                        \
	}                                                                                          \
	CUresult name##_ptsz(CUstream handle, type *property)                                      \
	{                                                                                          \
		return name##_of(handle, property, PER_THREAD);                                    \
	}

STREAM_PROPERTY(cuStreamGetFlags, unsigned int, stream->flags)
STREAM_PROPERTY(cuStreamGetPriority, int, stream->priority)
STREAM_PROPERTY(cuStreamGetId, unsigned long long, stream->id)
STREAM_PROPERTY(cuStreamGetDevice, CUdevice, stream->context->device->ordinal)
