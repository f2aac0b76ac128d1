/* Busy periods of work on a card, from idle to idle; see compute/busy.c. With the meter's lock. */
#pragma once

#include "compute/meter_state.h"

#include <stdbool.h>
#include <stdint.h>

/* A gap shorter than this between launches counts as work. */
#define BUSY_GAP_NS 20000u

/* Does nobody else want the card just now? */
bool busy_is_alone(const struct meter *meter);
/* And may this slice then have it all? */
bool busy_is_free(const struct meter *meter);

/* Charges what has ended. `is_waited_for`: the caller has just waited for the card. */
void busy_poll(struct meter *meter, uint64_t now_ns, bool is_waited_for);

/* Work of other streams that ended before the first event's: charges it as estimated. */
void busy_overtake(struct meter *meter, uint64_t now_ns);

/* Tells neighbours that we are at work, for somewhat longer than it should take; or that not. */
void busy_publish(struct meter *meter, uint64_t now_ns);
/* The same after a launch: nothing to do while what was told still holds. */
void busy_extend(struct meter *meter, uint64_t now_ns);
