/* Who else is on a card, as NVML tells it; see compute/witness.c. */
#ifndef GPUSLICE_COMPUTE_WITNESS_H
#define GPUSLICE_COMPUTE_WITNESS_H

#include "books/activity.h"

#include <stdint.h>

/*
 * Average number of other containers' processes on the card of late, in parts of
 * ACTIVITY_ONE; 0 where it cannot be known. `own`: our own page. With the
 * meter's lock.
 */
uint32_t witness_others(int card, const struct activity *own, uint64_t now_ns);

#endif
