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
	made->next = context->streams;
	context->streams = made;
	*stream = made;
	return CUDA_SUCCESS;
}

static CUresult find_default(struct context *context, struct stream **stream)
{
	CUresult result = CUDA_SUCCESS;

	if (!context->default_stream) {
		result = stream_make(context, CU_STREAM_DEFAULT, 0, &context->default_stream);
		if (result == CUDA_SUCCESS)
			context->default_stream->is_default = true;
	}
	*stream = context->default_stream;
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
	return CUDA_SUCCESS;
}

static bool has_queue(struct stream *stream)
{
	const struct device *device = stream->context->device;

	if (stream->queue < 0)
		stream->queue = engine_open_stream(device->engine, device->tenant);
	return stream->queue >= 0;
}

static void run_host_call(uint64_t cookie)
{
	struct host_call *call = (struct host_call *)(uintptr_t)cookie;

	driver_unlock();
	if (call->callback)
		call->callback(call->handle, CUDA_SUCCESS, call->argument);
	else
		call->function(call->argument);
	driver_lock();
	free(call);
}

/* True when it ran one. */
static bool run_due_host_call(struct stream *stream)
{
	uint64_t cookie;

	if (stream->queue < 0 ||
	    !engine_pop_host(stream->context->device->engine, stream->queue, driver_now_ns(), &cookie))
		return false;
	run_host_call(cookie);
	return true;
}

static CUresult push_raw(struct stream *stream, struct engine_item item, uint64_t *number)
{
	struct engine *engine = stream->context->device->engine;

	if (!has_queue(stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (!engine_push(engine, stream->queue, item, driver_now_ns(), number)) {
		struct engine_view view = engine_look(engine, stream->queue, driver_now_ns());

		stream_harvest(stream);
		if (view.host_is_next)
			run_due_host_call(stream);
		else
			driver_doze(view.left_ns / ENGINE_ITEMS);
		ledger_publish(stream->context->device);
	}
	return CUDA_SUCCESS;
}

/* The time of the event that had this marker's place ENGINE_MARKERS markers ago. */
static void settle_place(struct stream *stream, uint64_t number)
{
	struct event *event = stream->marked[number % ENGINE_MARKERS];

	if (event)
		event_settle(event, engine_marker_ns(stream->context->device->engine, stream->queue,
						     number));
	stream->marked[number % ENGINE_MARKERS] = NULL;
}

CUresult stream_mark(struct stream *stream, struct event *event, uint64_t *number)
{
	struct engine_item item = { .kind = ENGINE_MARKER };
	CUresult result;

	if (!has_queue(stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	settle_place(stream, stream->context->device->engine->streams[stream->queue].marked + 1);
	result = push_raw(stream, item, number);
	if (result == CUDA_SUCCESS)
		stream->marked[*number % ENGINE_MARKERS] = event;
	return result;
}

void stream_harvest(struct stream *stream)
{
	struct engine *engine = stream->context->device->engine;

	if (stream->queue < 0)
		return;
	for (unsigned place = 0; place < ENGINE_MARKERS; place++) {
		struct event *event = stream->marked[place];

		if (event && event_number(event) <= engine->streams[stream->queue].reached)
			settle_place(stream, event_number(event));
	}
}

CUresult stream_follow(struct stream *stream, const struct stream *other, uint64_t number)
{
	const struct engine *engine = other->context->device->engine;
	struct engine_item item = { .kind = ENGINE_WAIT, .number = number };

	if (other->queue < 0 || stream == other)
		return CUDA_SUCCESS;
	item.other = (uint32_t)other->queue;
	item.generation = engine->streams[other->queue].generation;
	/* Another card's engine: its marker cannot be awaited there, so wait for it here. */
	if (engine != stream->context->device->engine) {
		while (engine_look(other->context->device->engine, other->queue, driver_now_ns())
			       .reached < number)
			driver_doze(0);
		return CUDA_SUCCESS;
	}
	return push_raw(stream, item, NULL);
}

static bool is_blocking(const struct stream *stream)
{
	return !stream->is_default && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static bool has_work(const struct stream *stream)
{
	return stream->queue >= 0 &&
	       engine_look(stream->context->device->engine, stream->queue, driver_now_ns()).queued;
}

static CUresult follow_end(struct stream *stream, struct stream *other)
{
	uint64_t number;
	CUresult result;

	if (!has_work(other))
		return CUDA_SUCCESS;
	result = stream_mark(other, NULL, &number);
	return result == CUDA_SUCCESS ? stream_follow(stream, other, number) : result;
}

/* The legacy default stream and the blocking streams of a context wait for each other. */
static CUresult order(struct stream *stream)
{
	struct context *context = stream->context;
	CUresult result = CUDA_SUCCESS;

	if (is_blocking(stream) && context->default_stream)
		return follow_end(stream, context->default_stream);
	if (!stream->is_default)
		return result;
	for (struct stream *each = context->streams; each && result == CUDA_SUCCESS; each = each->next) {
		if (is_blocking(each))
			result = follow_end(stream, each);
	}
	return result;
}

CUresult stream_push(struct stream *stream, struct engine_item item)
{
	CUresult result = order(stream);

	return result == CUDA_SUCCESS ? push_raw(stream, item, NULL) : result;
}

CUresult stream_call_host(struct stream *stream, struct host_call call)
{
	struct host_call *kept = malloc(sizeof(*kept));

	if (!kept)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*kept = call;
	return stream_push(stream, (struct engine_item){ .kind = ENGINE_HOST,
							 .number = (uint64_t)(uintptr_t)kept });
}

/* Host functions of any stream of the context: others may wait behind them. */
static bool run_due_host_calls(struct context *context)
{
	bool ran = false;

	for (struct stream *stream = context->streams; stream && !ran; stream = stream->next)
		ran = run_due_host_call(stream);
	return ran;
}

bool stream_is_idle(struct stream *stream, uint64_t *left_ns)
{
	struct engine_view view;

	*left_ns = 0;
	if (stream->queue < 0)
		return true;
	while (run_due_host_calls(stream->context))
		;
	view = engine_look(stream->context->device->engine, stream->queue, driver_now_ns());
	stream_harvest(stream);
	*left_ns = view.left_ns;
	return view.queued == 0;
}

void stream_wait(struct stream *stream)
{
	uint64_t left_ns;

	while (!stream_is_idle(stream, &left_ns)) {
		driver_doze(left_ns);
		ledger_publish(stream->context->device);
	}
	ledger_publish(stream->context->device);
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
		if (stream->is_destroyed && !has_work(stream))
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

void context_wait(struct context *context)
{
	for (struct stream *stream = context->streams; stream; stream = stream->next)
		stream_wait(stream);
	sweep(context);
}

void streams_close_all(struct context *context)
{
	for (struct stream *stream = context->streams; stream; stream = stream->next) {
		while (has_work(stream)) {
			if (!run_due_host_call(stream))
				driver_doze(0);
		}
		stream_harvest(stream);
	}
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
