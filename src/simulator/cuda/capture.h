/*
 * Stream capture: work that a stream is given becomes nodes of a graph. Events
 * recorded in a capturing stream carry the capture into streams that wait for
 * them; all of those must have come back when the first stream ends it.
 */
#ifndef GPUSIM_CAPTURE_H
#define GPUSIM_CAPTURE_H

#include "graph.h"

struct capture {
	uint64_t id;
	CUstreamCaptureMode mode;
	bool is_invalid;
	bool owns_graph; /* not captured into one of the program's */
	struct graph *graph;
	struct stream *origin;
	pthread_t thread;
	struct capture *next;
};

/* All under the process's lock. */

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph);
CUresult capture_end(struct stream *stream, struct graph **graph);
/* Adds to the nodes that what comes next in the stream follows. */
CUresult capture_set_ends(struct stream *stream, const CUgraphNode *nodes, size_t count);
void capture_clear_ends(struct stream *stream);

CUresult capture_add(struct stream *stream, const struct work *work,
		     const CUgraphNodeParams *params);
CUresult capture_allocate(struct stream *stream, const struct device *device, CUdeviceptr *address,
			  uint64_t bytes);
CUresult capture_release(struct stream *stream, CUdeviceptr address);
CUresult capture_record(struct stream *stream, struct event *event);
/* A stream waits for an event of a capture: it joins. */
CUresult capture_join(struct stream *stream, struct event *event);

/* The capture fails; returns the error that the call which broke it gets. */
CUresult capture_invalidate(struct capture *capture);

/*
 * For calls that could wait for, or come into, a capture elsewhere:
 * CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is broken, if one of a
 * mode that forbids it is under way. See cuThreadExchangeStreamCaptureMode.
 */
CUresult capture_refuse_unsafe(void);
/* The legacy stream may not be used while a blocking stream of its context captures. */
CUresult capture_refuse_implicit(const struct stream *stream);

/* The stream ends: so does a capture that began in it. */
void capture_abandon(struct stream *stream);
void capture_forget_stream(struct stream *stream);
void capture_forget_event(struct event *event);
/* At start-up: what is called with a capture that ends. */
void capture_at_end(void (*call)(const struct capture *capture));

#endif
