/* How long launches of a kind take; see compute/estimate.c. With the meters' lock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct estimate {
	uint64_t mean_ns;  /* card time of one launch */
	uint64_t worst_ns; /* what it may take for all we know */
	uint64_t more_ns;  /* the longest of late took so much more than the mean */
	bool is_known;     /* measured before, */
	bool is_sure;      /* and by itself */
};

struct estimate estimate_of(uint64_t what);
/* One is launched: is it to be measured by itself, with an event on both sides? */
bool estimate_wants_sample(uint64_t what);
/* One took so long by itself; true when that is far longer than the mean was. */
bool estimate_sample(uint64_t what, uint64_t took_ns);
/* Launches of one kind took so long each, with what lay between them. */
void estimate_learn(uint64_t what, uint64_t took_ns, uint32_t launches);
/* Something took longer than known: sample the next ones. */
void estimate_doubt(uint64_t what);

/*
 * Copies between host and card: `copy` is from estimate_copy_kind(). What they take goes with
 * their bytes.
 */
static inline uint64_t estimate_copy_kind(bool is_to_host, bool is_pageable, uint64_t bytes)
{
	return ((uint64_t)is_to_host << 1 | is_pageable) << 62 | (bytes & UINT64_MAX >> 2);
}

struct estimate estimate_of_copy(uint64_t copy);
bool estimate_wants_copy_sample(uint64_t copy);
void estimate_copy_sample(uint64_t copy, uint64_t took_ns);

void estimate_forget_all(void);
