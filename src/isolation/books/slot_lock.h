/*
 * A lock on a byte of the region's file for each slot: it is there as long as
 * the process is, whatever pid namespace looks. After a restart of the container
 * the namespace is another, and pids of the old one can be asked of nobody.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The file and its size; remembered for the other calls. Before the region is used. */
void slot_lock_use(const char *path, size_t file_bytes);

/*
 * Until exec or death, whatever descriptors the application closes. False where
 * there are no such locks: then nobody may conclude anything from their absence.
 */
bool slot_lock_hold(unsigned slot);

/* The file, to look at any number of slots with; the caller closes it. -1: it cannot be opened. */
int slot_lock_open(void);
/* Is there a living process that holds this slot? In doubt yes. */
bool slot_lock_is_held(int fd, unsigned slot);
