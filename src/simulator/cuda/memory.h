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

/* What the driver takes from the card at once: smaller requests share such a block. */
#define MEMORY_BLOCK_BYTES (2ull * 1024 * 1024)
#define MEMORY_ALIGNMENT 512u
#define MEMORY_BACKED_BYTES (16ull * 1024 * 1024)

enum memory_kind {
	MEMORY_DEVICE = 1,
	MEMORY_MANAGED,
	MEMORY_HOST, /* pinned: takes nothing on the card */
	MEMORY_HOST_REGISTERED,
	MEMORY_POOL,
	MEMORY_MAPPED,   /* cuMemMap */
	MEMORY_IMPORTED, /* of another process, which pays for it */
	MEMORY_POOL_IMPORTED,
	MEMORY_ARRAY,
	MEMORY_GRAPH,
};

struct memory {
	uint64_t address;
	uint64_t bytes;         /* as asked */
	uint64_t span_bytes;    /* from address: as mapped; 0 when a part of a block */
	uint64_t charged_bytes; /* on the card, for this alone */
	uint64_t id;
	enum memory_kind kind;
	unsigned flags;
	unsigned references; /* of a graph's: nodes and executables that allocate it */
	struct device *device;
	struct context *context;   /* that it ends with, or NULL */
	struct block *block;       /* that it is a part of */
	struct pool *pool;         /* that it came from */
	struct physical *physical; /* that is mapped here */
	uint64_t offset;           /* in the memory file */
};

/* All under the process's lock. */

/* Takes room on the card and maps it. */
CUresult memory_allocate(struct context *context, uint64_t bytes, enum memory_kind kind,
			 struct memory **memory);
CUresult memory_release(struct memory *memory);
void memory_drop_all(struct context *context);
void memory_drop_pool(struct pool *pool);

/* The piece of the memory file that it lies in, and where in that piece it begins. */
void memory_extent(const struct memory *memory, uint64_t *offset, uint64_t *span_bytes,
		   uint64_t *inside);

/* What a single allocation of that size takes on the card. */
uint64_t memory_rounded(uint64_t bytes);

/* The allocation that begins at, or contains, an address. */
struct memory *memory_at(uint64_t address);
struct memory *memory_around(uint64_t address);
/* memory_table.c: puts one in, takes one out. */
bool memory_insert(struct memory *memory);
void memory_remove(struct memory *memory);
/* One of the context's, or the pool's; NULL when there is none left. */
struct memory *memory_any_of(const struct context *context, const struct pool *pool);

/* An allocation whose room is accounted for elsewhere (a pool, a graph): mapped, not charged. */
CUresult memory_map_uncharged(struct device *device, uint64_t bytes, enum memory_kind kind,
			      struct memory **memory);

/*
 * backing.c: pieces of the memory file. Bytes are whole pages; an offset tells
 * another process, or a second mapping, which piece.
 */
bool backing_reserve(uint64_t bytes, uint64_t *offset);
void *backing_map(uint64_t bytes, uint64_t *offset);
void backing_unmap(void *address, uint64_t bytes, uint64_t offset);
int backing_file(void);

#endif
