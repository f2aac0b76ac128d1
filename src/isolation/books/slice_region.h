/* The region of this container's slice, and this process's slot in it. */
#pragma once

#include "books/region.h"
#include "slice/slice.h"

/*
 * Maps it at the first call, while the slice is open; where that fails the slice
 * closes, with the reason. Any thread.
 */
bool slice_open_region(void);

/* Only after that. */
struct region *slice_region(void);

/* This process's slot in the region; -1 when all 256 are taken. Claims once. Any thread. */
int slice_slot(void);
/* The same where the region's lock is already held. */
int slice_slot_locked(void);
