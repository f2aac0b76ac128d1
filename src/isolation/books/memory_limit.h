/*
 * Whether bytes still fit the container's limit: its memory account, kept over all of its
 * processes.
 *
 * Reserve, then call, then settle: bytes are in the books before the driver is
 * asked for them, so no two processes can both get the last ones, and a process
 * that dies between leaves a slot that is cleared.
 */
#pragma once

#include "driver/api.h"

#include <stdbool.h>
#include <stdint.h>

/* Which column of the region. */
enum account_column { ACCOUNT_USED, ACCOUNT_OVERHEAD };

/* What knows of changes that no call tells; registered at start-up. */
struct account_sources {
	void (*refresh)(int card, uint64_t wanted); /* before every reservation: cheap */
	void (*reclaim)(int card); /* before a refusal: brings the books up to date */
	/* brings what shrinks by itself up to date; false while that cannot be done */
	bool (*follow)(int card);
};
void account_register(const struct account_sources *all);
bool account_follow(int card);

/* All may be called from any thread. */

/*
 * Success, or CUDA_ERROR_OUT_OF_MEMORY when the slice has not that much left
 * (after looking for the dead and for what the driver gave back meanwhile), or
 * CUDA_ERROR_SYSTEM_NOT_READY when there are no books.
 */
CUresult account_reserve(int card, enum account_column column, uint64_t bytes);
/* The same without looking for room or waiting: for a thread that has something reserved. */
CUresult account_reserve_now(int card, enum account_column column, uint64_t bytes);

/* Replaces a reservation by what was really taken. Never refuses: the driver has decided. */
void account_settle(int card, enum account_column column, uint64_t reserved, uint64_t taken);

/* Something charged before has changed its size by itself: a pool, a context. Never refuses. */
void account_adjust(int card, enum account_column column, uint64_t from, uint64_t to);

/*
 * Sets this process's overhead on a card to what it holds beyond what it asked for, if the books
 * did not move since `moment` (calls_are_back). NVML may list managed and
 * imported memory or not: within the range that this leaves, `expected` counts.
 */
struct account_look {
	uint64_t moment;
	uint64_t listed;   /* the process's bytes on the card */
	uint64_t managed;  /* asked for, and perhaps not there */
	uint64_t imported; /* not asked for, and perhaps listed */
	uint64_t expected; /* overhead, by what contexts and code usually take */
};
bool account_set_overhead(int card, const struct account_look *look);

/* The container's bytes on a card. `reap`: look for dead processes first. */
uint64_t account_held(int card, bool reap);
/* This process's own part. */
uint64_t account_own(int card);
/* The cap of a card; LIMITS_NO_CAP when there is none. */
uint64_t account_limit(int card);

/*
 * Calls to the driver that are reserved for and have not come back: whether this process's books
 * and the driver speak of the same moment. Any thread, but not under the region's lock.
 */
/* Around a call that takes or gives memory, in one thread. They nest. */
void calls_begin(void);
void calls_end(void);

/* False while calls are out; else the moment, until which the next call moves the books on. */
bool calls_are_back(uint64_t *moment);

void calls_after_fork(void);
