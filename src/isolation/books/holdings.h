/* What this process holds, by pointer or handle; see books/holdings.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Pointers and handles may have equal numbers: each kind is a space of its own. */
enum holding_kind {
	KIND_NONE,
	KIND_MEMORY, /* linear memory, by device pointer */
	KIND_ARRAY,
	KIND_MIPMAP,
	KIND_PHYSICAL, /* cuMemCreate, by handle */
	KIND_MAPPING,  /* cuMemMap, by address; `other` is the physical handle */
	KIND_GRAPH,    /* what an executable graph's nodes want of a card; `other` is the device */
	KIND_CONTEXT,  /* `bytes` is what it was found to cost, `other` what its code was */
	KIND_IMAGE,    /* a loaded module or library; `bytes` is the most that its code takes */
	KIND_IMPORT,   /* another process's memory, by address */
	KIND_PAGE, /* of linear memory, by address; `bytes` in it were asked for, in `handles` parts
		    */
};

struct holding {
	uint64_t key;
	uint64_t bytes;
	uint64_t context; /* it goes when this one goes; 0: with the process */
	uint64_t other;
	uint64_t other_serial; /* of what `other` names */
	uint64_t serial;       /* given when it is first put in: keys may be given out again */
	uint16_t kind;
	int16_t card;
	uint32_t handles; /* open handles, for physical memory */
	uint32_t mappings;
	uint32_t tag; /* free for the file that put it in; a context's device */
};

/* All may be called from any thread. */

/* False when there is no memory for it: the charge then stays until the process ends. */
bool holdings_put(const struct holding *entry);
/* Removes and returns it; false when it is not there. */
bool holdings_take(enum holding_kind kind, uint64_t key, struct holding *entry);
bool holdings_get(enum holding_kind kind, uint64_t key, struct holding *entry);
/* Removes all that go with a context; `gone`, unless it is NULL, is called for each. */
void holdings_forget(enum holding_kind kind, uint64_t context,
		     void (*gone)(const struct holding *));

/* Between these the calling thread may change what holdings_at points to, and nothing else. */
void holdings_lock(void);
void holdings_unlock(void);
struct holding *holdings_at(enum holding_kind kind, uint64_t key);
void holdings_remove(struct holding *entry);
/* As holdings_put; what holdings_at pointed to may have moved. */
bool holdings_add(const struct holding *entry);

/*
 * Under the lock: the next entry of the kind at or after *place, which starts
 * at 0 and moves on; NULL at the end. Removing restarts the walk.
 */
struct holding *holdings_next(enum holding_kind kind, uint32_t *place);

/* In a forked child: none of it is this process's. */
void holdings_after_fork(void);
