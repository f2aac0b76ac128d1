/*
 * When a slice was on a card: one page that its processes write and neighbours
 * read, /run/gpu-device-plugin/cards/<UUID>/<slice>. The layout is frozen: pods
 * that run keep their version of this library, so pages of several share a card.
 * What is new stands in what was reserved, and `version` says that it is there.
 *
 * Finished work stands in two rings of buckets, as the average number of
 * processes that had the card: short buckets for the last moments, since
 * who was there together with whom is lost within one, and long ones for 2 s.
 * Unfinished work stands in `open`. Buckets up to number `newest` belong to the
 * last round of a ring. A process whose kernels are known to be short claims what
 * these take, however long it waited among them for its turn; any other claims
 * all the time from its first launch to its last end, as version 0 always does.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ACTIVITY_SHORT_NS 128000ull
#define ACTIVITY_LONG_NS 4096000ull
#define ACTIVITY_MAGIC 0x3254434153555047ull /* "GPUSACT2", little endian */

enum {
	ACTIVITY_BYTES = 4096,
	ACTIVITY_OPEN = 64,     /* shared by slots of equal remainder */
	ACTIVITY_SHORTS = 1000, /* 128 ms */
	ACTIVITY_LONGS = 504,   /* 2.06 s */
	ACTIVITY_ONE = 4096,    /* one process for the whole bucket */
};

#define ACTIVITY_HISTORY_NS (ACTIVITY_LONGS * ACTIVITY_LONG_NS)

enum activity_version { ACTIVITY_PRESENCE = 0, ACTIVITY_VERSION = 1 };

struct activity_open {
	_Atomic uint64_t since_ns; /* CLOCK_MONOTONIC; 0: nothing unfinished */
	_Atomic uint64_t until_ns; /* when it should have ended at the latest */
};

struct activity {
	_Atomic uint64_t magic;
	_Atomic uint64_t newest_short, newest_long;
	_Atomic uint32_t version; /* 0: of a library that wrote none; enum activity_version */
	uint8_t memory[20];       /* earlier libraries told here what the slice held */
	/* Until then the slice asks the others to begin nothing; 0: it does not. compute/quiet.c */
	_Atomic uint64_t quiet_until_ns;
	_Atomic uint32_t yields; /* 1: this slice does as others ask so */
	uint8_t reserved[4];
	struct activity_open open[ACTIVITY_OPEN];
	/* processes * ACTIVITY_ONE */
	_Atomic uint16_t shorts[ACTIVITY_SHORTS];
	_Atomic uint16_t longs[ACTIVITY_LONGS];
};

_Static_assert(sizeof(struct activity) == ACTIVITY_BYTES, "layout");
_Static_assert(offsetof(struct activity, open) == 64, "layout");

/* It is a page, of this version. Before anything is written to it. */
void activity_sign(struct activity *page);
/* Any thread of any process of the slice: work in [from, to) claims `part_ns` of that time. */
void activity_add(struct activity *page, uint64_t from_ns, uint64_t to_ns, uint64_t part_ns);
void activity_set_open(struct activity *page, unsigned place, uint64_t since_ns, uint64_t until_ns);

/* A bucket of either ring. */
struct activity_bucket {
	bool is_long;
	uint64_t number;
	uint64_t from_ns, to_ns;
};

/* The bucket in which a moment is looked for at `now_ns`. */
struct activity_bucket activity_bucket_at(uint64_t moment_ns, uint64_t now_ns);

/* Time for which finished work was there in one bucket, of all processes together. */
uint64_t activity_finished_ns(const struct activity *page, const struct activity_bucket *bucket);

/* The same in all the short buckets of a span. */
uint64_t activity_between(const struct activity *page, uint64_t from_ns, uint64_t to_ns,
			  uint64_t now_ns);

/*
 * Average number of processes on the card in one bucket, in parts of
 * ACTIVITY_ONE; `now_ns` ends a bucket that is not over. `skip`: an open place
 * that does not count (one's own), or -1.
 */
uint32_t activity_in(const struct activity *page, const struct activity_bucket *bucket,
		     uint64_t now_ns, int skip);
