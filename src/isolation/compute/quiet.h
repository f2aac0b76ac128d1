/*
 * A moment without neighbours, to learn what a kernel takes by itself; see compute/quiet.c. With
 * the meter's lock.
 */
#pragma once

#include "compute/meter_state.h"

#include <stdbool.h>
#include <stdint.h>

#define QUIET_NAP_NS 100000u

/* May launches of others begin? 0, or how long a slice beside us asks for none. */
uint64_t quiet_of_others_ns(int card, uint64_t now_ns);

/* Should this launch be measured without neighbours? Then they are asked from now on. */
bool quiet_begin(struct meter *meter, uint64_t what, uint64_t now_ns);
/* Asked: is it time to launch, because they are quiet or do not become so? */
bool quiet_is_reached(struct meter *meter, uint64_t what, uint64_t now_ns);
/* What was launched has ended. */
void quiet_pass(struct meter *meter, uint64_t now_ns);
/* It lasts: what is launched now is measured without neighbours, and paid for later. */
bool quiet_lasts(const struct meter *meter, uint64_t now_ns);
/* The others said that they were quiet all the time: then where to look whether they were, else 0.
 */
uint64_t quiet_since_ns(const struct meter *meter, uint64_t from_ns, uint64_t to_ns);
