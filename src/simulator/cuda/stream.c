#include "stream.h"

#include "capture.h"
#include "event.h"
#include "ledger.h"

#include <stdlib.h>

static uint64_t stream_ids;

CUresult stream_make(struct context *context, unsigned flags, int priority, struct stream **stream)
{
	struct stream *made = calloc(1, sizeof(*made));

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->magic = STREAM_MAGIC;
	made->queue = -1;
	made->flags = flags;
	made->priority = priority;
	made->id = ++stream_ids;
	made->context = context;
	made->green = context_green(context);
	made->next = context->streams;
	context->streams = made;
	*stream = made;
	return CUDA_SUCCESS;
}

static CUresult find_default(struct context *context, struct stream **stream)
{
	/* A green context's orders nothing but itself. */
	struct context *owner = context_green(context) ? context_green(context) : context;
	const unsigned flags = owner->home ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
	CUresult result = CUDA_SUCCESS;

	if (!owner->default_stream) {
		result = stream_make(context, flags, 0, &owner->default_stream);
		if (result == CUDA_SUCCESS)
			owner->default_stream->is_default = !owner->home;
	}
	*stream = owner->default_stream;
	return result;
}

static CUresult find_per_thread(struct context *context, struct stream **stream)
{
	CUresult result;

	for (struct stream *each = context->streams; each; each = each->next) {
		if (each->is_per_thread && pthread_equal(each->thread, pthread_self())) {
			*stream = each;
			return CUDA_SUCCESS;
		}
	}
	result = stream_make(context, CU_STREAM_DEFAULT, 0, stream);
	if (result == CUDA_SUCCESS) {
		(*stream)->is_per_thread = true;
		(*stream)->thread = pthread_self();
	}
	return result;
}

CUresult stream_find(struct context *context, CUstream handle, enum default_stream null,
		     struct stream **stream)
{
	if (handle == CU_STREAM_LEGACY || (!handle && null == LEGACY))
		return find_default(context, stream);
	if (handle == CU_STREAM_PER_THREAD || !handle)
		return find_per_thread(context, stream);
	*stream = (struct stream *)(void *)handle;
	if ((*stream)->magic != STREAM_MAGIC || (*stream)->is_destroyed)
		return CUDA_ERROR_INVALID_HANDLE;
	return (*stream)->green && !(*stream)->green->is_alive ? CUDA_ERROR_INVALID_HANDLE
							       : CUDA_SUCCESS;
}

static void free_stream(struct stream *stream)
{
	struct stream **place = &stream->context->streams;

	while (*place && *place != stream)
		place = &(*place)->next;
	if (*place)
		*place = stream->next;
	if (stream->queue >= 0)
		engine_close_stream(stream->context->device->engine, stream->queue);
	capture_abandon(stream);
	capture_forget_stream(stream);
	stream->magic = 0;
	free(stream);
}

static struct stream *destroyed_and_idle(struct context *context)
{
	for (struct stream *stream = context->streams; stream; stream = stream->next) {
		if (stream->is_destroyed && !stream_has_work(stream))
			return stream;
	}
	return NULL;
}

/* Frees destroyed streams whose work has ended. */
static void sweep(struct context *context)
{
	struct stream *stream;

	while ((stream = destroyed_and_idle(context))) {
		stream_harvest(stream);
		free_stream(stream);
	}
}

/* No stream is held across a wait: other threads may destroy theirs meanwhile. */
void context_wait(struct context *context)
{
	uint64_t left_ns;

	while (!context_is_idle(context, &left_ns)) {
		driver_doze(left_ns);
		ledger_publish(context->device);
	}
	ledger_publish(context->device);
	sweep(context->home ? context->home : context);
}

void streams_close_all(struct context *context)
{
	context_wait(context);
	while (context->streams)
		free_stream(context->streams);
	context->default_stream = NULL;
}

static CUresult destroy(CUstream handle)
{
	CUresult result = driver_enter_bare();
	struct stream *stream = (struct stream *)(void *)handle;

	if (result != CUDA_SUCCESS)
		return result;
	if (!stream || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD ||
	    stream->magic != STREAM_MAGIC || stream->is_destroyed)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	stream->is_destroyed = true;
	sweep(stream->context);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream handle)
{
	return destroy(handle);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	return destroy(handle);
}
