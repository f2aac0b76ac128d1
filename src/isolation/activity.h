/*
 * When a slice was on a card: one page that its processes write and neighbours
 * read, /run/gpu-device-plugin/cards/<UUID>/<slice>. The layout is frozen.
 *
 * Finished work stands in a ring of buckets of 1 ms, as the average number of
 * processes that were on the card; unfinished work in `open`. Buckets up to
 * number `cleared` belong to the last round of the ring.
 */
#ifndef GPUSLICE_ACTIVITY_H
#define GPUSLICE_ACTIVITY_H

#include <stdatomic.h>
#include <stdint.h>

#define ACTIVITY_BUCKET_NS 1000000ull
#define ACTIVITY_MAGIC 0x3154434153555047ull /* "GPUSACT1", little endian */

enum {
	ACTIVITY_BYTES = 4096,
	ACTIVITY_OPEN = 64,      /* shared by slots of equal remainder */
	ACTIVITY_BUCKETS = 1504, /* 1.5 s */
	ACTIVITY_ONE = 4096,     /* one process for the whole bucket */
};

#define ACTIVITY_HISTORY_NS (ACTIVITY_BUCKETS * ACTIVITY_BUCKET_NS)

struct activity_open {
	_Atomic uint64_t since_ns; /* CLOCK_MONOTONIC; 0: nothing unfinished */
	_Atomic uint64_t until_ns; /* when it should have ended at the latest */
};

struct activity {
	_Atomic uint64_t magic;
	_Atomic uint64_t cleared; /* number of the newest bucket of this round */
	uint8_t reserved[48];
	struct activity_open open[ACTIVITY_OPEN];
	_Atomic uint16_t buckets[ACTIVITY_BUCKETS]; /* processes * ACTIVITY_ONE */
};

_Static_assert(sizeof(struct activity) == ACTIVITY_BYTES, "layout");

/* Any thread of any process of the slice: one process was on the card in [from, to). */
void activity_add(struct activity *page, uint64_t from_ns, uint64_t to_ns);
void activity_set_open(struct activity *page, unsigned place, uint64_t since_ns, uint64_t until_ns);

/*
 * Average number of processes on the card in one bucket, in parts of
 * ACTIVITY_ONE; `now_ns` ends a bucket that is not over. `skip`: an open place
 * that does not count (one's own), or -1.
 */
uint32_t activity_in(const struct activity *page, uint64_t bucket, uint64_t now_ns, int skip);

#endif
