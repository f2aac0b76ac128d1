/* What work is charged when it has ended; see compute/charge.c. With the meters' lock. */
#pragma once

#include "compute/meter_state.h"

/* Nothing of the meter's is on the card. */
static inline bool charge_is_idle(const struct meter *meter)
{
	return !meter->count && !meter->tail.launches;
}

/* Between two kernels of a stream that are queued. */
uint64_t charge_gap_ns(void);

/* Charges what has ended. Gives the lock up meanwhile; NULL when the context ended. */
struct meter *charge_poll(struct meter *meter, uint64_t now_ns);
/*
 * The same where all of the meter's work has ended, and was waited for from `asked_ns` on: also
 * what has no event behind it.
 */
struct meter *charge_all(struct meter *meter, uint64_t asked_ns, uint64_t now_ns);
/* When the card likely has nothing of ours any more. */
uint64_t charge_over_ns(const struct meter *meter);
/* The context ends: what is out is forgotten. */
void charge_forget(struct meter *meter, uint64_t now_ns);

/* What is out takes far longer than its mean and `more_ns`: it may wait for the program. */
bool charge_is_late(const struct meter *meter, uint64_t more_ns, uint64_t now_ns);
/* Must a launch that may take so long wait until more of what is out was measured? */
bool charge_holds(struct meter *meter, uint64_t worst_ns, uint64_t now_ns);
/* So much is behind no event that the next launch needs one. */
bool charge_wants_event(const struct meter *meter);
