/*
 * Memory that no allocation call asks for: contexts, loaded code, local memory,
 * heaps. Measured after the call that made it, and counted; see overhead.c.
 */
#ifndef GPUSLICE_OVERHEAD_H
#define GPUSLICE_OVERHEAD_H

#include "api.h"

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* The making of one context; begin in the thread that makes it. */
struct overhead_context {
	int card;
	bool is_first;  /* of this process on this card */
	bool is_locked; /* the region: others must not move the card's total */
	bool was_listed;
	bool knew_before;
	CUcontext home;    /* of a green one, whose price is nobody else's: it is always measured */
	uint64_t expected; /* reserved before */
	uint64_t before;   /* bytes of the process or of the card */
};

/* Success, or the error that the call shall return: no room for what it is known to cost. */
CUresult overhead_begin_context(struct overhead_context *making, CUdevice device);
CUresult overhead_begin_green(struct overhead_context *making, CUdevice device, CUcontext home);
void overhead_end_context(struct overhead_context *making, CUresult result, CUcontext context);
/* A context has ended: what it cost and what was allocated in it is free again. */
void overhead_forget_context(CUcontext context);

/* Around a call that may load code or widen a heap. */
struct overhead_change {
	int card;
	bool is_large; /* measured at once; small ones when they are next looked for */
	bool is_locked;
	uint64_t before;
	const void *what; /* a launch that is to be noted; NULL: none */
};
void overhead_begin_change(struct overhead_change *change, bool is_large);
void overhead_end_change(struct overhead_change *change);

/* A function or graph was launched: the first time may have brought its code and local memory. */
void overhead_saw_launch(const void *what);
/*
 * The same, around the driver's launch and nothing else: without NVML the first
 * one is watched. What a stream only records brings nothing yet. `counted`:
 * bytes that the launch took of the current context's card and others charge.
 */
void overhead_begin_launch(struct overhead_change *change, const void *what, CUstream stream);
void overhead_end_launch(struct overhead_change *change, uint64_t counted);
/* Something may have changed without any call that says so. */
void overhead_suspect(void);
/* The same, but not worth a look at once: what it should cost is in the books. */
void overhead_suspect_later(void);

/* Measure again if there is a suspicion and the last look is old enough; or at once. */
void overhead_refresh(int card);
void overhead_refresh_now(int card);

void overhead_after_fork(void);

/* A change of the card's total beyond this is a neighbour's, not our context's. */
#define OVERHEAD_MOST_BELIEVED (4096ull * 1024 * 1024)

/* The steps that overhead.c and overhead_context.c share. */
bool overhead_card_used(int card, uint64_t *bytes);
bool overhead_has_context(int card);
/* Sets the overhead by what NVML holds against this process; false when that cannot be had now. */
bool overhead_measure(int card, uint64_t *listed_bytes);

#endif
