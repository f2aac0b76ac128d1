/*
 * What a slice tells the others of a card: one page that its processes write and neighbours
 * read, /run/gpu-device-plugin/cards/<UUID>/<slice>. The size and the places of `magic`,
 * `version`, `is_told` and `out_until_ns` are frozen: pods that run keep their version of this
 * library, so pages of several share a card. Times are CLOCK_MONOTONIC. Each word is written by
 * itself, since a writer may die anywhere.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ACTIVITY_MAGIC 0x3254434153555047ull /* "GPUSACT2", little endian */

enum {
	ACTIVITY_BYTES = 4096,
	ACTIVITY_HEAD_BYTES = 80, /* all that version 2 writes */
	ACTIVITY_VERSION = 2,     /* earlier ones know no leases */
};

struct activity {
	_Atomic uint64_t magic;
	uint8_t earlier[16]; /* 0; rings of earlier versions */
	_Atomic uint32_t version;
	_Atomic uint32_t takes_leases;  /* 0: no cap, or one that is not enforced */
	_Atomic uint64_t want_until_ns; /* the slice waits for the card; 0: it does not */
	_Atomic uint64_t hold_until_ns; /* the slice alone may launch; 0: it holds no lease */
	uint64_t earlier_quiet;         /* 0 */
	_Atomic int64_t key;            /* of those who wait, the one with the largest is next */
	/* Earlier versions have two words for each process; 0 in the first: nothing unfinished. */
	_Atomic uint64_t is_told;
	_Atomic uint64_t out_until_ns; /* when all unfinished work should have ended */
	uint8_t earlier_processes[4016];
};

_Static_assert(sizeof(struct activity) == ACTIVITY_BYTES, "layout");
_Static_assert(offsetof(struct activity, version) == 24, "layout");
_Static_assert(offsetof(struct activity, key) == 56, "layout");
_Static_assert(offsetof(struct activity, earlier_processes) == ACTIVITY_HEAD_BYTES, "layout");
