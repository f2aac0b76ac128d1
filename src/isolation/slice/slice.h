/*
 * What this container may have, decided once a process: nothing to do (inert),
 * nothing allowed (closed), or a slice (open).
 */
#pragma once

#include "slice/limits.h"

enum slice_state {
	SLICE_UNKNOWN,
	SLICE_INERT,  /* no agent made this container: the driver as it is */
	SLICE_CLOSED, /* limits that cannot be kept: no card at all */
	SLICE_OPEN,
};

/* Decides at the first call: reads the limits. Any thread. */
enum slice_state slice_state(void);

/* Is there a slice to keep at all? Looks and reads nothing; any thread. */
bool slice_is_meant(void);

/* From now on closed, with one line that says why. Any thread. */
__attribute__((format(printf, 1, 2))) void slice_close(const char *format, ...);

/* One line on stderr, for what a person must know: the only way this library speaks. */
__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

/* The following only while open. What the slice has of each card may change at any moment. */
const struct limits *slice_limits(void);
/*
 * The limits have been replaced, or `told` is another number than last time: reads them again, and
 * takes what they say of memory and compute. False where they cannot be read; then the next call
 * tries again. Any thread, under any lock but `deciding`.
 */
bool slice_follow(uint32_t told);
/* The limits may have been replaced since the slice was decided: reads them again. */
void slice_take_newer(void);
/* The directory that holds config/, state/ and cards/. */
const char *slice_root(void);
/* Was it made by the agent, and not by a person who starts the library by hand? */
bool slice_is_of_agent(void);

/* Index of the device line with this UUID; -1: not this container's card. */
int slice_card(const char *uuid);
