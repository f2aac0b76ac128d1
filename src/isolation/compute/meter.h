/* Card time: what this process's work takes, and who may go on; see compute/meter.c. */
#pragma once

#include "compute/compute.h"

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
 * `stream` names the per-thread default stream as such. `is_copy`: between host and card, `what` is
 * from estimate_copy_kind(), and it needs no lease; only where meter_is_capped(). Any thread.
 */
void meter_before(struct meter_launch *launch, uint64_t what, bool is_copy, CUstream stream);
void meter_after(struct meter_launch *launch, CUresult result);
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
 * Copies between host and card: `copy` is from one of these. What they take goes with their bytes.
 */
static inline uint64_t estimate_copy_kind(bool is_to_host, bool is_pageable, uint64_t bytes)
{
	return ((uint64_t)is_to_host << 1 | is_pageable) << 62 | (bytes & UINT64_MAX >> 3);
}

/* Of a batch: it is charged what it takes, whatever the one before it took. */
static inline uint64_t estimate_batch_kind(uint64_t bytes)
{
	return 1ull << 61 | (bytes & UINT64_MAX >> 3);
}
