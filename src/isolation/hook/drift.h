/* Functions of the driver that came after us; see hook/drift.c. */
#pragma once

/*
 * For a function of the driver's that we have no stand-in for: counts those that by their
 * name, or base name, change what is counted, and says so once each.
 */
void drift_note(const char *name);
