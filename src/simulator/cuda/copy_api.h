/* How the entry points of copies and fills hand over what they were asked. */
#ifndef GPUSIM_COPY_API_H
#define GPUSIM_COPY_API_H

#include "work.h"

enum copy_wait {
	COPY_WAITS,   /* the call returns when it is done */
	COPY_RETURNS, /* ...Async */
};

/* Enters the driver, captures or does, waits if asked to, leaves. */
CUresult copy_submit(const struct copy *copy, CUstream stream, enum default_stream null,
		     enum copy_wait wait);
CUresult copy_submit_linear(uint64_t to, uint64_t from, size_t bytes, CUstream stream,
			    enum default_stream null, enum copy_wait wait);

#endif
