/*
 * The driver maps memory in pages of 2 MiB, so an allocation takes more of the card than was asked.
 * The parts of its pages that nobody asked for are counted as overhead; see books/pages.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PAGE_BYTES (2ull * 1024 * 1024)

static inline uint64_t round_up(uint64_t bytes, uint64_t to)
{
	const uint64_t rest = bytes % to;

	return rest && bytes <= UINT64_MAX - to ? bytes + to - rest : bytes;
}

/* All may be called from any thread, between the call to the driver and the settling of its bytes.
 */

/* Linear memory, by its address; the same once more, with the same figures, when it goes. */
enum pages_change { PAGES_TAKEN, PAGES_GIVEN };
void pages_placed(enum pages_change way, int card, uint64_t address, uint64_t bytes);

/* Memory whose address the driver does not tell: arrays. */
void pages_unplaced(enum pages_change way, int card, uint64_t bytes);

/* Bytes of pages on a card that this process holds and did not ask for. */
uint64_t pages_overhead(int card);
/* Of these, what is not counted. */
uint64_t pages_uncounted(int card);

void pages_after_fork(void);
