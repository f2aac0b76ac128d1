/*
 * The events by which work is measured: one meter a context, with the events that were set and
 * not reached. Everything with the meters' lock, which no call of the driver is made with.
 */
#pragma once

#include "compute/meter_state.h"

void events_lock(void);
void events_unlock(void);

/* The meter of a context, made if it has none; the last one is shared when all are taken. */
struct meter *events_meter(CUcontext context, int card);
/* NULL when it has none. */
struct meter *events_meter_of(CUcontext context);
/* Meters are looked for among the first so many. */
unsigned events_count(void);
struct meter *events_meter_at(unsigned index);

/*
 * Puts the tail behind an event on the stream; where none can be set it stays the tail. The lock
 * is given up meanwhile. NULL when the context ended.
 */
struct meter *events_set(struct meter *meter, CUstream stream, uint64_t now_ns);
/*
 * Was event `index` reached, and how long after the reference? False: not yet. The lock is given
 * up meanwhile; only for who has `is_polled`. `is_timed`: the time could be told.
 */
bool events_look(struct meter *meter, uint32_t index, bool *is_timed, int64_t *later_ns);
/* Takes it out; it becomes the reference where it was reached after that. */
void events_pass(struct meter *meter, uint32_t index, bool is_later, uint64_t now_ns);

/* The context ends, its events with it. */
void events_forget(struct meter *meter);
void events_after_fork(void);
