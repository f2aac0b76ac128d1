/*
 * A place to work: a context of a card, with a stream and the kernel of spin.h.
 */
#ifndef PROGRAMS_PLACE_H
#define PROGRAMS_PLACE_H

#include "call.h"
#include "spin.h"

#include <stdint.h>

static void *driver; /* main opens it */

struct place {
	CUcontext context;
	CUstream stream;
	CUfunction spin;
	uint64_t duration_ns;
	void *parameters[1];
};

/* Its context is current afterwards. */
static CUresult make_place(struct place *place, int card, uint64_t duration_ns)
{
	CUmodule module;
	CUresult result = CALL(cuCtxCreate_v2, &place->context, 0, card);

	if (!result)
		result = CALL(cuStreamCreate, &place->stream, CU_STREAM_NON_BLOCKING);
	if (!result)
		result = CALL(cuModuleLoadData, &module, spin_image);
	if (!result)
		result = CALL(cuModuleGetFunction, &place->spin, module, "spin");
	place->duration_ns = duration_ns;
	place->parameters[0] = &place->duration_ns;
	return result;
}

static CUresult launch(const struct place *place)
{
	return CALL(cuLaunchKernel, place->spin, 1, 1, 1, 1, 1, 1, 0, place->stream,
		    (void **)place->parameters, NULL);
}

#endif
