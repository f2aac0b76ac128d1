/*
 * Being in another context than the current one: where a stream's work runs, for example.
 *
 * Between these two that context is current in the calling thread, so that its
 * card is asked, and events belong to it. Pair them in one function.
 */
#ifndef GPUSLICE_VISIT_H
#define GPUSLICE_VISIT_H

#include "cards.h"
#include "green.h"
#include "stream.h"

struct visit {
	CUcontext context; /* current from now on, or its home; NULL when there is none */
	bool is_elsewhere; /* another than before */
};

/* The stream's own context; in doubt, and for the default streams, the current one. */
static inline CUcontext visit_context(CUstream stream)
{
	CUcontext context = NULL;

	if (!stream_is_default(stream) && cuda.cuStreamGetCtx &&
	    green_home_of(stream, &context) == CUDA_SUCCESS)
		return context;
	return context_current();
}

static inline struct visit visit_enter(CUcontext context)
{
	const struct visit visit = {.context = context_current()};

	if (!context || context == visit.context || !cuda.cuCtxPushCurrent_v2 ||
	    !cuda.cuCtxPopCurrent_v2 || cuda.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return visit;
	return (struct visit){.context = context, .is_elsewhere = true};
}

static inline struct visit visit_stream(CUstream stream)
{
	const CUcontext context = visit_context(stream);

	return stream_is_default(stream) ? (struct visit){.context = context}
					 : visit_enter(context);
}

static inline void visit_end(struct visit visit)
{
	if (visit.is_elsewhere)
		cuda.cuCtxPopCurrent_v2(&visit.context);
}

/* There once more, after visit_end(). */
static inline void visit_again(struct visit *visit)
{
	if (visit->is_elsewhere && cuda.cuCtxPushCurrent_v2(visit->context) != CUDA_SUCCESS)
		visit->is_elsewhere = false;
}

#endif
