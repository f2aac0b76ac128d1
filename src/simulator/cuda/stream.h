/* Streams, and how the process waits for the virtual GPU. */
#ifndef GPUSIM_STREAM_H
#define GPUSIM_STREAM_H

#include "context.h"
#include "engine.h"

#include <pthread.h>

struct event;
struct capture;
struct graph_node;

enum { STREAM_MAGIC = 0x53545230 };

/* Which stream a NULL handle means: the entry points without and with _ptsz. */
enum default_stream { LEGACY, PER_THREAD };

/* The last nodes of one stream in a capture: what comes next follows them. */
struct capture_ends {
	struct graph_node **at;
	size_t count;
};

struct stream {
	uint32_t magic;
	int queue;       /* the engine's number for it, -1 before the first work */
	bool is_default; /* the legacy stream: ordered with all blocking ones */
	bool is_per_thread;
	bool is_destroyed; /* its work goes on; freed when that ends */
	unsigned flags;
	int priority;
	uint64_t id;
	pthread_t thread; /* of a per-thread default stream */
	struct context *context;
	struct context *green;   /* made in it; NULL for most */
	struct capture *capture; /* recording into a graph, instead of working */
	struct capture_ends ends;
	struct event *marked[ENGINE_MARKERS]; /* who waits for which marker */
	struct stream *next;
};

/* A function of the program that runs when the stream gets there. */
struct host_call {
	void (*function)(void *argument);
	CUstreamCallback callback; /* the older kind */
	void *argument;
	CUstream handle;
	bool (*is_due)(const void *argument); /* NULL: as soon as the stream gets there */
};

/* All under the process's lock. Those marked (waits) may give it away for a while. */

/* CUDA_ERROR_INVALID_HANDLE for a handle that is none. */
CUresult stream_find(struct context *context, CUstream handle, enum default_stream null,
		     struct stream **stream);
CUresult stream_make(struct context *context, unsigned flags, int priority, struct stream **stream);
void streams_close_all(struct context *context);

/* Queues an item behind what is there (waits while the queue is full). */
CUresult stream_push(struct stream *stream, struct engine_item item);
/* A marker, with the event that wants to know when (or NULL). */
CUresult stream_mark(struct stream *stream, struct event *event, uint64_t *number);
/* What is pushed to `stream` from now on comes after marker `number` of `other`. */
CUresult stream_follow(struct stream *stream, const struct stream *other, uint64_t number);
CUresult stream_call_host(struct stream *stream, struct host_call call);

/* Of what was queued, host functions included. */
bool stream_has_work(const struct stream *stream);
/* Runs a host function that is due; false when none is (waits). */
bool stream_run_host_call(struct stream *stream);
/* True when all work is done. Runs host functions that are due (waits). */
bool stream_is_idle(struct stream *stream, uint64_t *left_ns);
/* The same of all streams of a context: of a green one its own, of its primary one also these. */
bool context_is_idle(struct context *context, uint64_t *left_ns);
void stream_wait(struct stream *stream);
void context_wait(struct context *context);

/* Notes the times of events whose markers were reached. */
void stream_harvest(struct stream *stream);

#endif
