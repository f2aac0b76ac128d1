#include "capture.h"

#include "event.h"

#include <stdlib.h>
#include <string.h>

static struct capture *captures;
static uint64_t ids;
static void (*at_end)(const struct capture *capture);
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void capture_at_end(void (*call)(const struct capture *capture))
{
	at_end = call;
}

CUresult capture_invalidate(struct capture *capture)
{
	capture->is_invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool forbids(const struct capture *capture)
{
	bool is_mine = pthread_equal(capture->thread, pthread_self());

	if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
	    thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return is_mine || (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
			   thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_refuse_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;

	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (forbids(capture))
			result = capture_invalidate(capture);
	}
	return result;
}

CUresult capture_refuse_implicit(const struct stream *stream)
{
	if (!captures || !stream->is_default)
		return CUDA_SUCCESS;
	for (const struct stream *each = stream->context->streams; each; each = each->next) {
		if (each->capture && !(each->flags & CU_STREAM_NON_BLOCKING)) {
			capture_invalidate(each->capture);
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode old = thread_mode;

	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

static bool add_end(struct capture_ends *ends, struct graph_node *node)
{
	return nodes_add(&ends->at, &ends->count, node);
}

static void clear_ends(struct capture_ends *ends)
{
	free(ends->at);
	*ends = (struct capture_ends){0};
}

CUresult capture_add(struct stream *stream, const struct work *work,
		     const CUgraphNodeParams *params)
{
	struct graph_node *node;
	CUresult result;

	if (stream->capture->is_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	result = graph_add(stream->capture->graph, (const CUgraphNode *)(void *)stream->ends.at,
			   stream->ends.count, work, params, &node);
	if (result != CUDA_SUCCESS)
		return result;
	clear_ends(&stream->ends);
	return add_end(&stream->ends, node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_allocate(struct stream *stream, const struct device *device, CUdeviceptr *address,
			  uint64_t bytes)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
	struct work work;
	CUresult result;

	params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	params.alloc.poolProps.location.id = device->ordinal;
	params.alloc.bytesize = bytes;
	result = graph_work_of(stream->context, &params, &work);
	if (result == CUDA_SUCCESS)
		result = capture_add(stream, &work, &params);
	if (result == CUDA_SUCCESS)
		*address = params.alloc.dptr;
	return result;
}

CUresult capture_release(struct stream *stream, CUdeviceptr address)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
	struct work work;
	CUresult result;

	params.free.dptr = address;
	result = graph_work_of(stream->context, &params, &work);
	return result == CUDA_SUCCESS ? capture_add(stream, &work, &params) : result;
}

void capture_forget_event(struct event *event)
{
	event->capture = NULL;
	clear_ends(&event->ends);
}

/* The event stands for what the stream did up to here. */
CUresult capture_record(struct stream *stream, struct event *event)
{
	if (stream->capture->is_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	capture_forget_event(event);
	event->capture = stream->capture;
	for (size_t i = 0; i < stream->ends.count; i++) {
		if (!add_end(&event->ends, stream->ends.at[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUresult capture_join(struct stream *stream, struct event *event)
{
	if (event->capture->is_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capture && stream->capture != event->capture)
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	if (stream->is_default) {
		capture_invalidate(event->capture);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	stream->capture = event->capture;
	for (size_t i = 0; i < event->ends.count; i++) {
		if (!add_end(&stream->ends, event->ends.at[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUresult capture_set_ends(struct stream *stream, const CUgraphNode *nodes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!node_of(nodes[i]))
			return CUDA_ERROR_INVALID_VALUE;
		if (!add_end(&stream->ends, node_of(nodes[i])))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

void capture_clear_ends(struct stream *stream)
{
	clear_ends(&stream->ends);
}

void capture_forget_stream(struct stream *stream)
{
	stream->capture = NULL;
	clear_ends(&stream->ends);
}

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph)
{
	struct capture *capture;

	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->is_default)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->owns_graph = !graph;
	capture->graph = graph ? graph : graph_new();
	if (!capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->id = ++ids;
	capture->mode = mode;
	capture->origin = stream;
	capture->thread = pthread_self();
	capture->next = captures;
	captures = capture;
	stream->capture = capture;
	return CUDA_SUCCESS;
}

/* All nodes that nothing in the graph follows are among the origin's last ones. */
static bool is_joined(const struct capture *capture)
{
	for (const struct graph_node *node = capture->graph->nodes; node; node = node->next) {
		bool is_followed = false;

		for (size_t i = 0; i < capture->origin->ends.count; i++)
			is_followed |= capture->origin->ends.at[i] == node;
		for (const struct graph_node *other = node->next; other && !is_followed;
		     other = other->next) {
			for (size_t i = 0; i < other->before_count; i++)
				is_followed |= other->before[i] == node;
		}
		if (!is_followed)
			return false;
	}
	return true;
}

static void drop(struct capture *capture)
{
	struct capture **place = &captures;

	while (*place != capture)
		place = &(*place)->next;
	*place = capture->next;
	for (struct stream *each = capture->origin->context->streams; each; each = each->next) {
		if (each->capture == capture)
			capture_forget_stream(each);
	}
	if (at_end)
		at_end(capture);
	free(capture);
}

CUresult capture_end(struct stream *stream, struct graph **graph)
{
	struct capture *capture = stream->capture;
	CUresult result = CUDA_SUCCESS;

	*graph = NULL;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->is_invalid)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!is_joined(capture))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (result == CUDA_SUCCESS)
		*graph = capture->graph;
	else if (capture->owns_graph)
		graph_free(capture->graph);
	drop(capture);
	return result;
}

void capture_abandon(struct stream *stream)
{
	struct capture *capture = stream->capture;

	if (!capture)
		return;
	capture_invalidate(capture);
	if (capture->origin != stream)
		return;
	if (capture->owns_graph)
		graph_free(capture->graph);
	drop(capture);
}
