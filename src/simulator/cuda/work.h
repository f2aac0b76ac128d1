/*
 * One piece of work for a stream: done at once (queued on the virtual GPU), or,
 * where the stream is capturing, made a node of a graph.
 */
#ifndef GPUSIM_WORK_H
#define GPUSIM_WORK_H

#include "copy.h"
#include "stream.h"

struct work {
	CUgraphNodeType type;
	uint64_t ns;           /* of a kernel */
	bool is_programmatic;  /* it may begin before the kernel in front of it has ended */
	struct module *module; /* of a kernel: brought to the card first */
	struct copy copy;      /* of a copy or fill */
	CUhostFn host;         /* of a host function */
	void *argument;
	struct event *event;   /* of a record or a wait */
	struct memory *memory; /* of a graph's allocation or free */
};

/* All under the process's lock. */

/* Captures, or does. `params` says the same as the program would ask a node for it. */
CUresult work_submit(struct stream *stream, const struct work *work,
		     const CUgraphNodeParams *params);
/* Does, whatever the stream's state: for a graph's launch. */
CUresult work_run(struct stream *stream, const struct work *work);

#endif
