/* The region of this container's slice, this process's slot in it, and the slice's pages of
 * activity. */
#pragma once

#include "books/activity.h"
#include "books/region.h"
#include "slice/slice.h"

/*
 * Maps it at the first call, while the slice is open; where that fails the slice
 * closes, with the reason. Any thread.
 */
bool slice_open_region(void);

/* Only after that. */
struct region *slice_region(void);

/*
 * Takes over the limits if the region tells of newer ones; false where they cannot be read, and
 * what holds is not known. Costs a read of memory. Any thread.
 */
bool slice_follow_limits(void);

/* This process's slot in the region; -1 when all 256 are taken. Claims once. Any thread. */
int slice_slot(void);
/* The same where the region's lock is already held. */
int slice_slot_locked(void);

/* Calls `found` with the open file of each other slice's page on a card, which it is to close. */
void activity_each_neighbour(int card, void (*found)(int fd, void *argument), void *argument);
/* This slice's page: the agent's file, else the one in the region. Any thread. */
struct activity *activity_own_page(int card);
