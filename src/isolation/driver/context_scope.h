/*
 * Being in another context than the current one: where a stream's work runs, for example.
 *
 * Between these two that context is current in the calling thread, so that its
 * card is asked, and events belong to it. Pair them in one function.
 */
#pragma once

#include "driver/cards.h"
#include "driver/green_home.h"
#include "driver/stream.h"

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

/* There once more, after scope_end(). */
static inline void scope_again(struct context_scope *scope)
{
	if (scope->is_elsewhere && cuda.cuCtxPushCurrent_v2(scope->context) != CUDA_SUCCESS)
		scope->is_elsewhere = false;
}
