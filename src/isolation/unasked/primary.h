/* A card's primary context, which its users share: there from the first to the last. */
#pragma once

#include "driver/api.h"

#include <stdbool.h>

/* All may be called from any thread. */

/* One user more. Where that makes it, its cost is held against the slice. */
CUresult primary_retain(CUcontext *context, CUdevice device);

/*
 * Around a call of the driver's that takes a user away, or with `is_reset` all of them.
 * Between the two nobody else comes or goes.
 */
struct primary_end {
	CUdevice device;
	CUcontext context; /* NULL: it is not active */
};
void primary_begin_end(struct primary_end *end, CUdevice device, bool is_reset);
void primary_end(const struct primary_end *end, CUresult result);

void primary_after_fork(void);
