/*
 * What is queued and not yet measured, at the longest that it may take; see
 * compute/backlog.c. With the meter's lock.
 */
#pragma once

#include "compute/meter_state.h"

#include <stdbool.h>
#include <stdint.h>

/* Does the first event take far longer than it should? */
bool backlog_is_late(const struct meter *meter, uint64_t now_ns);
/* Was no event reached for a second? What is queued may itself wait for the program. */
bool backlog_stands_still(const struct meter *meter, uint64_t now_ns);
/* An event was reached before the first: what is queued may be behind a wait for the program. */
void backlog_set_aside(struct meter *meter, uint64_t now_ns);
/* Must a launch that may take so long wait until more of what is queued was measured? */
bool backlog_holds(const struct meter *meter, uint64_t worst_ns, uint64_t now_ns);
/* How long to wait before looking again; 0: long enough, let one go. */
uint64_t backlog_nap_ns(struct meter *meter, uint64_t now_ns);

/* A launch goes out. */
void backlog_add(struct meter *meter, CUstream stream, uint64_t worst_ns, uint64_t now_ns);
/* It did not. */
void backlog_withdraw(struct meter *meter, CUstream stream, uint64_t worst_ns);
/* Is there so much without an event that the stream needs one? */
bool backlog_wants_event(struct meter *meter, CUstream stream, uint64_t now_ns);
/* An event is recorded on the stream: what is certain when it is reached. */
uint64_t backlog_behind_event(struct meter *meter, CUstream stream);
/* It was reached. */
void backlog_end(struct meter *meter, uint64_t worst_ns);
