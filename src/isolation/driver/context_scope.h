/*
 * Contexts: the current one, and being in another: where a stream's work runs, for example.
 *
 * Between these two that context is current in the calling thread, so that its
 * card is asked, and events belong to it. Pair them in one function.
 */
#pragma once

#include "driver/driver.h"
#include "driver/stream.h"

#include <stdatomic.h>
#include <stdbool.h>

/*
 * Green contexts (CUDA 12.4): handles for a part of a card's multiprocessors.
 *
 * Memory, code and work belong to the primary context, whichever green one is
 * current. So a context is known by its home: itself, or the primary one.
 */
extern atomic_bool green_was_made; /* by this process */

/* Before CUDA 12.5 the driver does not tell: green ones then count as contexts of their own. */
static inline bool green_is_possible(void)
{
	return atomic_load_explicit(&green_was_made, memory_order_relaxed) &&
	       cuda.cuStreamGetCtx_v2;
}

/* The context of a stream; of the default stream, NULL, the home of the current one. Any thread. */
static inline CUresult green_home_of(CUstream stream, CUcontext *context)
{
	CUgreenCtx ignored;

	if (green_is_possible())
		return cuda.cuStreamGetCtx_v2(stream, context, &ignored);
	return stream ? cuda.cuStreamGetCtx(stream, context) : cuda.cuCtxGetCurrent(context);
}

static inline bool green_is_current(void)
{
	CUgreenCtx green = NULL;
	CUcontext ignored;

	return green_is_possible() &&
	       cuda.cuStreamGetCtx_v2(NULL, &ignored, &green) == CUDA_SUCCESS && green;
}

/* The current context, or its home; NULL when there is none. Any thread. */
static inline CUcontext context_current(void)
{
	CUcontext context = NULL;

	return green_home_of(NULL, &context) == CUDA_SUCCESS ? context : NULL;
}

struct context_scope {
	CUcontext context; /* current from now on, or its home; NULL when there is none */
	bool is_elsewhere; /* another than before */
};

/* The stream's own context; in doubt, and for the default streams, the current one. */
static inline CUcontext scope_context(CUstream stream)
{
	CUcontext context = NULL;

	if (!stream_is_default(stream) && cuda.cuStreamGetCtx &&
	    green_home_of(stream, &context) == CUDA_SUCCESS)
		return context;
	return context_current();
}

static inline struct context_scope scope_enter(CUcontext context)
{
	const struct context_scope scope = {.context = context_current()};

	if (!context || context == scope.context || !cuda.cuCtxPushCurrent_v2 ||
	    !cuda.cuCtxPopCurrent_v2 || cuda.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return scope;
	return (struct context_scope){.context = context, .is_elsewhere = true};
}

static inline struct context_scope scope_stream(CUstream stream)
{
	const CUcontext context = scope_context(stream);

	return stream_is_default(stream) ? (struct context_scope){.context = context}
					 : scope_enter(context);
}

static inline void scope_end(struct context_scope scope)
{
	if (scope.is_elsewhere)
		cuda.cuCtxPopCurrent_v2(&scope.context);
}
