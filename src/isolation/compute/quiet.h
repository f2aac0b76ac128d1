/*
 * A moment without neighbours, to learn what a kernel takes by itself; see compute/quiet.c. With
 * the meter's lock.
 */
#pragma once

#include "compute/events.h"

#include <stdbool.h>
#include <stdint.h>

#define QUIET_NAP_NS 100000u

/* May launches of others begin? 0, or how long a slice beside us asks for none. */
uint64_t quiet_of_others_ns(int card, uint64_t now_ns);

/* Should this launch be measured without neighbours? Then they are asked from now on. */
bool quiet_begin(struct meter *meter, uint64_t what, uint64_t now_ns);
/* Asked at `since_ns`: is it time to launch, because they are quiet or do not become so? */
bool quiet_is_reached(const struct meter *meter, uint64_t what, uint64_t since_ns, uint64_t now_ns);
/* What was launched has ended. */
void quiet_end(struct meter *meter);
