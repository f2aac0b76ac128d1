/*
 * Green contexts (CUDA 12.4): handles for a part of a card's multiprocessors.
 *
 * Memory, code and work belong to the primary context, whichever green one is
 * current. So we know contexts by their home: themselves, or the primary one.
 */
#pragma once

#include "driver/driver.h"

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool green_was_made; /* by this process */

/* Before CUDA 12.5 nobody can tell: green ones are then taken for contexts of their own. */
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
