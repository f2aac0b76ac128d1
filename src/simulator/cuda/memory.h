/*
 * Device memory of this process: what was allocated, where it lies, what it
 * takes on the card, and the host memory behind it.
 *
 * Behind every allocation lies a part of one sparse memory file. Pages nobody
 * writes cost nothing, and copies touch at most the first MEMORY_BACKED_BYTES
 * of an allocation, so a full 141 GiB card is a few KiB of host memory.
 */
#ifndef GPUSIM_MEMORY_H
#define GPUSIM_MEMORY_H

#include "context.h"

/* What the driver hands out at once: smaller requests share such a block. */
#define MEMORY_BLOCK_BYTES (2ull * 1024 * 1024)
#define MEMORY_ALIGNMENT 512u
#define MEMORY_BACKED_BYTES (16ull * 1024 * 1024)

enum memory_kind {
	MEMORY_DEVICE = 1,
	MEMORY_MANAGED,
	MEMORY_HOST, /* pinned: takes nothing on the card */
	MEMORY_HOST_REGISTERED,
	MEMORY_POOL,
	MEMORY_MAPPED, /* cuMemMap */
	MEMORY_IMPORTED, /* of another process, which pays for it */
	MEMORY_GRAPH,
};

struct memory {
	uint64_t address;
	uint64_t bytes; /* as asked */
	uint64_t span_bytes; /* from address: as mapped; 0 when a part of a block */
	uint64_t charged_bytes; /* on the card, for this alone */
	uint64_t id;
	enum memory_kind kind;
	unsigned flags;
	struct context *context;
	struct block *block; /* that it is a part of */
	struct pool *pool; /* that it came from */
};

/* All under the process's lock. */

/* Takes room on the card and maps it. */
CUresult memory_allocate(struct context *context, uint64_t bytes, enum memory_kind kind,
			 struct memory **memory);
CUresult memory_release(struct memory *memory);
void memory_drop_all(struct context *context);

/* What a single allocation of that size takes on the card. */
uint64_t memory_rounded(uint64_t bytes);

/* The allocation that begins at, or contains, an address. */
struct memory *memory_at(uint64_t address);
struct memory *memory_around(uint64_t address);
/* memory_table.c: puts one in, takes one out. */
bool memory_insert(struct memory *memory);
void memory_remove(struct memory *memory);
struct memory *memory_any_of(const struct context *context);

/* backing.c: a piece of the memory file. `offset` tells where, for another process. */
void *backing_map(uint64_t bytes, uint64_t *offset);
void backing_unmap(void *address, uint64_t bytes);
int backing_file(void);

#endif
