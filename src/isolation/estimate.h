/* How long a function or a graph took so far; see estimate.c. With the meter's lock. */
#ifndef GPUSLICE_ESTIMATE_H
#define GPUSLICE_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/* Until it was seen once: long enough that only few strangers run at a time. */
#define ESTIMATE_UNKNOWN_NS 5000000u

/* Card time of one launch; *is_known tells whether it was ever measured. */
uint64_t estimate_of(uint64_t what, bool *is_known);
void estimate_learn(uint64_t what, uint64_t measured_ns);
void estimate_forget_all(void);

#endif
