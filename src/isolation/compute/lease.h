/*
 * Who may launch: slices of a card take leases of it, in which they are alone; see
 * compute/lease.c. With the meters' lock.
 */
#pragma once

#include "compute/meter_state.h"

/* Nanoseconds until it is worth asking again; 0: the launch may go now. */
uint64_t lease_wait_ns(struct meter *meter, struct meter_launch *launch);

/* Tells the neighbours until when the slice has work out. */
void lease_tell(const struct meter *meter, uint64_t now_ns);
/* The same of a slice that takes no leases: for some time, or until its work was waited for. */
void lease_tell_without(int card, uint64_t until_ns);

/* May the slice have all of the card now, as nobody else wants it? */
bool lease_is_free(int card, uint64_t now_ns);
/* How many slices that take no leases have work on the card, as of the last look. */
unsigned lease_beside(int card, uint64_t now_ns);
/* Did a slice that takes leases tell of itself within the time before now? */
bool lease_is_seen(int card, uint64_t lately_ns, uint64_t now_ns);
