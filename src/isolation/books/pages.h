/*
 * What the driver takes beyond what is asked of it: whole pages. The parts of them
 * that nobody asked for are counted as overhead; see books/pages.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. Between the call to the driver and the settling of its bytes.
 */

/* Linear memory, by its address; the same once more, with the same figures, when it goes. */
enum pages_change { PAGES_TAKEN, PAGES_GIVEN };
void pages_placed(enum pages_change way, int card, uint64_t address, uint64_t bytes);

/* Memory whose place nobody tells: arrays. */
void pages_unplaced(enum pages_change way, int card, uint64_t bytes);

/* This process's on a card, in bytes that nobody asked for: all of them, and those not counted. */
uint64_t pages_overhead(int card);
uint64_t pages_uncounted(int card);

void pages_after_fork(void);
