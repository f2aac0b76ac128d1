/* A stream's queue on the virtual GPU: filled, waited for, looked at. */
#include "event.h"
#include "ledger.h"
#include "stream.h"

#include <stdlib.h>

/* Queued and not run yet, in the whole process: usually none, and then nobody looks. */
static unsigned host_calls;

static bool run_due_host_call(struct context *context);

static bool has_queue(struct stream *stream)
{
	struct device *device = stream->context->device;

	if (stream->queue < 0)
		stream->queue = engine_open_stream(device->engine, device->tenant);
	if (stream->queue < 0 && ledger_reap(device))
		stream->queue = engine_open_stream(device->engine, device->tenant);
	return stream->queue >= 0;
}

static void run_host_call(uint64_t cookie)
{
	struct host_call *call = (struct host_call *)(uintptr_t)cookie;

	host_calls--;
	driver_unlock();
	if (call->callback)
		call->callback(call->handle, CUDA_SUCCESS, call->argument);
	else
		call->function(call->argument);
	driver_lock();
	free(call);
}

static bool is_due(uint64_t cookie)
{
	const struct host_call *call = (const struct host_call *)(uintptr_t)cookie;

	return !call->is_due || call->is_due(call->argument);
}

/* True when it ran one. */
bool stream_run_host_call(struct stream *stream)
{
	uint64_t cookie;

	if (stream->queue < 0 || !engine_pop_host(stream->context->device->engine, stream->queue,
						  driver_now_ns(), is_due, &cookie))
		return false;
	run_host_call(cookie);
	return true;
}

static CUresult push_raw(struct stream *stream, struct engine_item item, uint64_t *number)
{
	struct engine *engine = stream->context->device->engine;
	uint64_t left_ns;

	if (!has_queue(stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (!engine_push(engine, stream->queue, item, driver_now_ns(), number)) {
		driver_hold();
		stream_is_idle(stream, &left_ns);
		driver_doze(left_ns / ENGINE_ITEMS);
		ledger_publish(stream->context->device);
	}
	driver_release();
	return CUDA_SUCCESS;
}

/* The time of the event that had this marker's place ENGINE_MARKERS markers ago. */
static void settle_place(struct stream *stream, uint64_t number)
{
	struct event *event = stream->marked[number % ENGINE_MARKERS];

	if (event) {
		event->time_ns =
			engine_marker_ns(stream->context->device->engine, stream->queue, number);
		event->stream = NULL;
	}
	stream->marked[number % ENGINE_MARKERS] = NULL;
}

CUresult stream_mark(struct stream *stream, struct event *event, uint64_t *number)
{
	struct engine_item item = {.kind = ENGINE_MARKER};
	CUresult result;

	if (!has_queue(stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (event)
		item.amount = stream->context->device->engine->costs.event_ns;
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

		if (event && event->number <= engine->streams[stream->queue].reached)
			settle_place(stream, event->number);
	}
}

CUresult stream_follow(struct stream *stream, const struct stream *other, uint64_t number)
{
	struct engine *engine = other->context->device->engine;
	struct engine_item item = {.kind = ENGINE_WAIT, .number = number};

	if (other->queue < 0 || stream == other)
		return CUDA_SUCCESS;
	item.other = (uint32_t)other->queue;
	item.generation = engine->streams[other->queue].generation;
	/* Another card's engine: its marker cannot be awaited there, so wait for it here. */
	if (engine != stream->context->device->engine) {
		while (engine_look(engine, other->queue, driver_now_ns()).reached < number) {
			if (!host_calls || !run_due_host_call(other->context))
				driver_doze(0);
		}
		return CUDA_SUCCESS;
	}
	return push_raw(stream, item, NULL);
}

static bool is_blocking(const struct stream *stream)
{
	return !stream->is_default && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

bool stream_has_work(const struct stream *stream)
{
	return stream->queue >= 0 &&
	       engine_look(stream->context->device->engine, stream->queue, driver_now_ns()).queued;
}

static CUresult follow_end(struct stream *stream, struct stream *other)
{
	uint64_t number;
	CUresult result;

	if (!stream_has_work(other))
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
	for (struct stream *each = context->streams; each && result == CUDA_SUCCESS;
	     each = each->next) {
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
	CUresult result;

	if (!kept)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*kept = call;
	host_calls++;
	result = stream_push(stream, (struct engine_item){.kind = ENGINE_HOST,
							  .number = (uint64_t)(uintptr_t)kept});
	if (result != CUDA_SUCCESS) {
		host_calls--;
		free(kept);
	}
	return result;
}

/* Of any stream of the context: others may wait behind it. */
static bool run_due_host_call(struct context *context)
{
	for (struct stream *stream = context->streams; stream; stream = stream->next) {
		if (stream_run_host_call(stream))
			return true;
	}
	return false;
}

static bool look(struct stream *stream, uint64_t *left_ns)
{
	struct engine_view view;

	if (stream->queue < 0)
		return true;
	view = engine_look(stream->context->device->engine, stream->queue, driver_now_ns());
	stream_harvest(stream);
	*left_ns = view.left_ns;
	return view.queued == 0;
}

bool stream_is_idle(struct stream *stream, uint64_t *left_ns)
{
	*left_ns = 0;
	while (host_calls && run_due_host_call(stream->context))
		;
	return look(stream, left_ns);
}

bool context_is_idle(struct context *context, uint64_t *left_ns)
{
	struct context *home = context->home ? context->home : context;
	bool is_idle = true;

	*left_ns = 0;
	while (host_calls && run_due_host_call(home))
		;
	for (struct stream *stream = home->streams; stream; stream = stream->next) {
		uint64_t of_stream_ns = 0;

		if (context != home && context != stream->green)
			continue;
		is_idle &= look(stream, &of_stream_ns);
		if (of_stream_ns > *left_ns)
			*left_ns = of_stream_ns;
	}
	return is_idle;
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
