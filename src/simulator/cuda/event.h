/* Events: recorded in a stream, they know the virtual time at which it got there. */
#ifndef GPUSIM_EVENT_H
#define GPUSIM_EVENT_H

#include "stream.h"

enum { EVENT_MAGIC = 0x45565430 };

struct event {
	uint32_t magic;
	unsigned flags;
	struct context *context;
	struct stream *stream;   /* of a record that has not been reached yet */
	uint64_t number;         /* its marker there */
	uint64_t time_ns;        /* of the last record that was reached; 0: never recorded */
	struct capture *capture; /* recorded in a capture, after these nodes */
	struct capture_ends ends;
	struct event *next; /* of all there are */
};

/* All under the process's lock. */
static inline struct event *event_of(CUevent handle)
{
	struct event *event = (struct event *)(void *)handle;

	return event && event->magic == EVENT_MAGIC ? event : NULL;
}

bool event_is_reached(struct event *event, uint64_t *left_ns);
void event_wait(struct event *event);
CUresult event_record(struct event *event, struct stream *stream);
/* What is pushed to the stream from now on comes after the record. */
CUresult event_precede(struct event *event, struct stream *stream);

#endif
