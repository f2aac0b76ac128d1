/*
 * Memory pools: stream-ordered allocation from room that the pool holds on the
 * card. A pool grows by whole chunks and gives them back when the program
 * synchronises and more than the release threshold is unused, or is trimmed.
 *
 * The pool is a sum, not a map: allocations in it never fragment. A free takes
 * effect at the call, not when the stream gets there.
 */
#ifndef GPUSIM_POOL_H
#define GPUSIM_POOL_H

#include "driver.h"

#define POOL_CHUNK_BYTES (32ull * 1024 * 1024)

enum { POOL_MAGIC = 0x504f4f30 };

struct pool {
	uint32_t magic;
	bool is_default;
	bool is_ended;         /* destroyed: until its last allocation is freed */
	bool is_imported;      /* another process's: only its pointers can be had here */
	unsigned handle_types; /* that it may be exported by */
	uint64_t id;
	struct device *device; /* NULL: the host's */
	uint64_t reserved_bytes;
	uint64_t reserved_high;
	uint64_t used_bytes;
	uint64_t used_high;
	uint64_t release_threshold;
	uint64_t most_bytes; /* 0: the card's size */
	int reuse[4];        /* the three CU_MEMPOOL_ATTR_REUSE_*, by number */
	struct pool *next;
};

/* All under the process's lock. */
struct pool *pool_of(CUmemoryPool handle);
/* The one that cuMemAllocAsync takes from; NULL without memory. */
struct pool *pool_current(struct device *device);
struct pool *pool_default(struct device *device);
/* Of the host, since CUDA 13: pinned memory, which takes nothing on a card. */
struct pool *pool_of_host(void);
/* Another process's, on this device. */
struct pool *pool_imported(struct device *device);

/* Grows as needed. False: the card is full, or the pool at its most. */
bool pool_give_out(struct pool *pool, uint64_t bytes);
void pool_take_back(struct pool *pool, uint64_t bytes);
/* After an allocation of it went: a destroyed one ends with the last. */
void pool_let_go(struct pool *pool);
void pool_trim(struct pool *pool, uint64_t keep_bytes);
/* After a synchronisation: all pools of the device, to their thresholds. */
void pools_release_unused(struct device *device);
/* The default pool ends with the primary context. */
void pool_drop_default(struct device *device); /* after memory_drop_pool */

#endif
