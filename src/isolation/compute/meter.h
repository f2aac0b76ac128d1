/* Card time: what this process's work takes, and who may go on; see compute/meter.c. */
#pragma once

#include "driver/context_scope.h"

#include <stdbool.h>
#include <stdint.h>

/* How long launches of a kind take: compute/estimate.c. */
struct estimate {
	uint64_t mean_ns;  /* card time of one launch */
	uint64_t worst_ns; /* what it may take for all we know */
	uint64_t more_ns;  /* the longest of late took so much more than the mean */
	bool is_known;     /* measured before, */
	bool is_sure;      /* and by itself */
};

/* One launch between its two halves, in the thread that makes it. */
struct meter_launch {
	int card;
	bool is_metered;
	bool is_sample;
	bool is_copy;
	uint64_t what; /* function and size, or graph, or estimate_copy_kind() */
	struct estimate estimate;
	uint64_t now_ns;     /* when it was let go */
	uint64_t blocked_ns; /* since when neighbours keep it from the card; 0: they do not */
	uint64_t waited_ns;  /* for credit and the card */
	uint64_t lag_ns;     /* of a sample: the card waited for the launch */
	CUevent front;       /* and the event before it */
	uint64_t front_number;
	CUstream stream;
	struct context_scope there; /* the stream's context */
};

/* A wait for work, between its two halves. */
struct meter_wait {
	CUcontext context;
	CUstream stream;
	bool is_for_all;   /* of the context */
	uint64_t number;   /* of launches when it began, */
	uint64_t asked_ns; /* and then it was so late */
};

/*
 * The size of a launch, to a factor of two; goes with its function, whose
 * address leaves the highest bits free.
 */
static inline uint64_t meter_size(uint64_t blocks, uint64_t threads)
{
	const uint64_t of_blocks = 63u - (uint64_t)__builtin_clzll(blocks | 1);
	const uint64_t of_threads = 63u - (uint64_t)__builtin_clzll(threads | 1);

	return (of_blocks << 4 | (of_threads & 15)) << 54;
}

static inline uint64_t meter_kind(const void *what, uint64_t size)
{
	return (uint64_t)(uintptr_t)what ^ size;
}

/*
 * Waits until the slice has card time left, and notes that work begins.
 * The card is that of the stream, whichever context is current.
 * `stream` names the per-thread default stream as such. Any thread.
 */
void meter_before(struct meter_launch *launch, uint64_t what, CUstream stream);
void meter_after(struct meter_launch *launch, CUresult result);
/*
 * The same of a copy between host and card (estimate_copy_kind), which needs no lease: where
 * meter_is_capped(), and with a `launch` of zeros.
 */
void meter_before_copy(struct meter_launch *launch, uint64_t copy, CUstream stream);
/* Does any card have a cap on its time? */
bool meter_is_capped(void);
/* The waiting alone: before work on several cards begins, each has to have time left. */
void meter_await(CUstream stream);

/*
 * The thread waits for work: of `stream`; of the current context with `is_for_all`; or, where
 * `is_for_all` is false and `stream` is METER_NO_STREAM, for some of it. Cheap without a cap.
 */
#define METER_NO_STREAM ((CUstream)(intptr_t)-1)
void meter_before_wait(struct meter_wait *wait, CUstream stream, bool is_for_all);
void meter_after_wait(const struct meter_wait *wait);

/* A context is about to end, and our events with it. */
void meter_forget_context(CUcontext context);

void meter_after_fork(void);

/*
 * Copies between host and card: `copy` is from estimate_copy_kind(). What they take goes with
 * their bytes.
 */
static inline uint64_t estimate_copy_kind(bool is_to_host, bool is_pageable, uint64_t bytes)
{
	return ((uint64_t)is_to_host << 1 | is_pageable) << 62 | (bytes & UINT64_MAX >> 2);
}
