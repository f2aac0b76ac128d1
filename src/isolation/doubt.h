/*
 * What is queued and not yet measured, at the longest that it may take; see
 * doubt.c. With the meter's lock.
 */
#ifndef GPUSLICE_DOUBT_H
#define GPUSLICE_DOUBT_H

#include "marks.h"

#include <stdbool.h>
#include <stdint.h>

/* Must a launch of this doubt wait until more of what is queued was measured? */
bool doubt_holds(const struct meter *meter, uint64_t doubt_ns, uint64_t now_ns);
/* How long to wait before looking again; 0: long enough, let one go. */
uint64_t doubt_nap_ns(struct meter *meter, uint64_t now_ns);

/* A launch goes out. */
void doubt_add(struct meter *meter, CUstream stream, uint64_t doubt_ns, uint64_t now_ns);
/* It did not. */
void doubt_withdraw(struct meter *meter, CUstream stream, uint64_t doubt_ns);
/* Is there so much without a mark that the stream needs one? */
bool doubt_wants_mark(struct meter *meter, CUstream stream, uint64_t now_ns);
/* A mark is set on the stream: the doubt that ends when it is reached. */
uint64_t doubt_mark(struct meter *meter, CUstream stream);
/* It was reached. */
void doubt_end(struct meter *meter, uint64_t doubt_ns);

#endif
