/* Stretches of work on a card, from idle to idle; see stretch.c. With the meter's lock. */
#ifndef GPUSLICE_STRETCH_H
#define GPUSLICE_STRETCH_H

#include "marks.h"

#include <stdbool.h>
#include <stdint.h>

/* A gap shorter than this between launches counts as work. */
#define STRETCH_GAP_NS 20000u

/* May this slice have what nobody else wants? */
bool stretch_may_share(void);
/* Does nobody else want it just now? */
bool stretch_is_alone(const struct meter *meter);

/* Charges what has ended. `is_waited_for`: the caller has just waited for the card. */
void stretch_poll(struct meter *meter, uint64_t now_ns, bool is_waited_for);

/* Work of other streams that ended before the first mark's: charges it as estimated. */
void stretch_overtake(struct meter *meter, uint64_t now_ns);

/* Tells neighbours that we are at work, for somewhat longer than it should take; or that not. */
void stretch_publish(struct meter *meter, uint64_t now_ns);
/* The same after a launch: nothing to do while what was told still holds. */
void stretch_extend(struct meter *meter, uint64_t now_ns);

#endif
