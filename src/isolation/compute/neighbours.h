/*
 * Who else was on a card, and what part of the time was therefore ours; see compute/neighbours.c.
 * Everything with the meter's lock.
 */
#pragma once

#include "compute/meter_state.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Card time that this process had in [from, to), in which it always had work
 * there: the processes of a card take turns.
 */
uint64_t neighbours_our_part(const struct meter *meter, uint64_t from_ns, uint64_t to_ns);

/* The same for what of our work, `there` from begin to end, lies in some short buckets. */
struct neighbours_share {
	uint64_t part_ns; /* ours, as above */
	uint64_t left_ns; /* what nobody else claims */
};
struct neighbours_share neighbours_share_again(const struct meter *meter,
					       const struct activity *there, uint64_t from_ns,
					       uint64_t to_ns, uint64_t now_ns);

/* Was nobody else there, as far as is told by now? */
bool neighbours_were_away(const struct meter *meter, uint64_t from_ns, uint64_t to_ns);

/* The converse: how long work from `from_ns` on that is `part_ns` of card time was there. */
uint64_t neighbours_duration(const struct meter *meter, uint64_t from_ns, uint64_t part_ns);

/* What others claim on average of late, in parts of ACTIVITY_ONE. */
uint32_t neighbours_parts(const struct meter *meter);

/* Until when a slice beside us asks the others to begin nothing. */
uint64_t neighbours_quiet_until_ns(int card, uint64_t now_ns);

/* Until when slices beside us have something unfinished, as they think or at the most; 0: nothing.
 */
uint64_t neighbours_out_until_ns(int card, uint64_t now_ns, bool at_most);

/* Would all who worked lately begin nothing if they were asked? */
bool neighbours_yield(const struct meter *meter, uint64_t lately_ns);

/* Has any slice beside us told of work lately? */
bool neighbours_are_at_work(int card, uint64_t lately_ns);
