/*
 * The events by which work is measured: one meter a context, a queue of events
 * each. Everything here with the lock of compute/await.h.
 */
#pragma once

#include "compute/meter_state.h"

/* The meter of a context, made if it has none; the last one is shared when all are taken. */
struct meter *events_meter(CUcontext context, int card);
/* NULL when it has none. */
struct meter *events_meter_of(CUcontext context);
/* Meters are looked for among the first so many. */
unsigned events_count(void);
struct meter *events_meter_at(unsigned index);

/* A busy period begins; with `is_measured` an event on the stream says when. */
void events_begin(struct meter *meter, CUstream stream, bool is_measured, uint64_t now_ns);
/* Puts the tail behind an event; false when none could be set. */
bool events_set(struct meter *meter, CUstream stream, uint64_t known_ns, uint64_t now_ns);
bool events_is_reached(const struct meter *meter);
/* From the reference to the first event; false when it cannot be told. */
bool events_took(const struct meter *meter, uint64_t *took_ns);
/* The first event becomes the reference. */
void events_pass(struct meter *meter, uint64_t reached_ns);
/* A later one, of another stream, was reached before the first: it goes, and its work is told. */
bool events_overtake(struct meter *meter, struct timed_event *gone);
/* A launch of this takes `each_ns` now: changes what is queued, and says by how much. */
int64_t events_reprice(struct meter *meter, uint64_t what, uint64_t each_ns);

/* The context ends, its events with it. */
void events_forget(struct meter *meter);
void events_forget_all(void);
