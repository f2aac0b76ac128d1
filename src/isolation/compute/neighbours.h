/* Who else was on a card, and what part of the time was therefore ours; see compute/neighbours.c.
 */
#pragma once

#include "books/activity.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Card time that this process had in [from, to), in which it always had work
 * there: the processes of a card take turns. `place` is our place among the open
 * ones of our page; `mine` what we have published. With the meter's lock.
 */
uint64_t neighbours_our_part(int card, uint64_t from_ns, uint64_t to_ns, int place,
			     const struct activity *mine);

/* The same for what of our work, `there` from begin to end, lies in some short buckets. */
struct neighbours_share {
	uint64_t there_ns;
	uint64_t part_ns; /* ours, as above */
	uint64_t left_ns; /* what nobody else claims */
};
struct neighbours_share neighbours_share_again(int card, uint64_t from_ns, uint64_t to_ns,
					       uint64_t now_ns, int place,
					       const struct activity *mine,
					       const struct activity *there);

/* Was nobody else there, as far as is told by now? With the meter's lock. */
bool neighbours_were_away(int card, uint64_t from_ns, uint64_t to_ns, int place,
			  const struct activity *mine);

/* The converse: how long work from `from_ns` on that is `part_ns` of card time was there. */
uint64_t neighbours_duration(int card, uint64_t from_ns, uint64_t part_ns, int place,
			     const struct activity *mine);

/* The same on average of late, in parts of ACTIVITY_ONE. */
uint32_t neighbours_parts(int card, int place, const struct activity *mine);

/* Until when a slice beside us asks the others to begin nothing. With the meter's lock. */
uint64_t neighbours_quiet_until_ns(int card, uint64_t now_ns);

/*
 * Until when slices beside us have something unfinished, as they think or at the most; 0:
 * nothing. With the meter's lock.
 */
uint64_t neighbours_out_until_ns(int card, uint64_t now_ns, bool at_most);

/* Would all who worked lately begin nothing if they were asked? With the meter's lock. */
bool neighbours_yield(int card, uint64_t lately_ns, int place);

/* Has any slice beside us told of work lately? With the meter's lock. */
bool neighbours_are_at_work(int card, uint64_t lately_ns);
