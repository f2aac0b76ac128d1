/*
 * The shared region: what the processes of one container tell each other, in
 * the file state/region that the agent made. The layout is frozen: another
 * layout is another number, and the agent reads it too (docs/isolation-details.md).
 *
 * All writes are under the lock except the words marked atomic. A slot belongs
 * to one process and never moves; only its owner writes its columns, and
 * the holder of the lock clears those of the dead.
 */
#pragma once

#include "slice/limits.h"
#include "slice/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	REGION_BYTES = 1024 * 1024,
	REGION_LAYOUT = 1,
	REGION_SLOTS = 256,
	REGION_ACTIVITY_BYTES = 4096, /* a card; see books/activity.h */
};

#define REGION_MAGIC 0x4543494c53555047ull /* "GPUSLICE", little endian */

enum region_state { REGION_VIRGIN = 0, REGION_BEGUN = 1, REGION_READY = 2 };
enum slot_state { SLOT_FREE = 0, SLOT_USED = 1 };

struct region_slot {
	uint32_t state;
	uint32_t generation; /* grows at each claim */
	struct process_name owner;
	uint32_t has_slot_lock; /* its owner holds a lock while it lives: books/region_lock.c */
	uint8_t reserved0[12];
	_Atomic uint64_t unsettled_bytes; /* of all cards, reserved for calls that are out */
};

struct region_card {
	char uuid[LIMITS_UUID_BYTES];
	uint64_t limit_bytes; /* UINT64_MAX: no cap */
	uint32_t core_percent;
	uint8_t context_source[2]; /* how these two below were found out: overhead/context_cost.c */
	uint8_t reserved0[2];
	_Atomic uint64_t refused_total; /* allocations refused for want of room */
	/* what a context costs a process without any, and one that has one; 0: unknown */
	uint64_t context_bytes[2];
	/* compute, all atomic: see compute/credit.c */
	_Atomic int64_t credit_ns;
	_Atomic uint64_t refilled_ns;  /* credit is paid up to here */
	_Atomic uint64_t busy_ns;      /* card time had, in all */
	_Atomic uint64_t throttled_ns; /* time launches waited for credit, in all */
	uint64_t reserved2;            /* of earlier builds: since when it is idle */
	/* the process that has the slice's lease, or had it last: see compute/turns.c */
	_Atomic uint64_t lease;
	_Atomic uint64_t turn_ns; /* what the one that was let go last had had by then */
	uint8_t reserved1[96];
	/* columns, indexed by slot */
	uint64_t used_bytes[REGION_SLOTS];         /* asked for, or about to be */
	uint64_t overhead_bytes[REGION_SLOTS];     /* contexts, code: asked for by no call */
	_Atomic int64_t inflight_ns[REGION_SLOTS]; /* launched, not yet charged */
};

/* Of a card: how the slice's processes take turns, all atomic, indexed by slot: compute/turns.c */
struct region_turns {
	_Atomic uint64_t had_ns[REGION_SLOTS];        /* card time that was charged to a process */
	_Atomic uint64_t want_until_ns[REGION_SLOTS]; /* it waits for the card; 0: it does not */
};

struct region {
	uint64_t magic;
	uint32_t layout;
	_Atomic uint32_t state; /* enum region_state */
	uint32_t bytes;
	uint32_t slot_count;
	uint32_t card_count;
	uint32_t slots_seen;              /* slots beyond were never used */
	_Atomic uint64_t drift_total;     /* unknown allocation functions resolved */
	_Atomic uint64_t reaped_total;    /* dead processes' slots cleared */
	_Atomic uint32_t lists_pids;      /* NVML knows this container's processes by their pids */
	_Atomic uint32_t limits_revision; /* the agent's: that of the limits file */
	uint8_t reserved0[8];
	union {
		pthread_mutex_t lock;
		uint8_t room[64];
	};
	char slice[LIMITS_NAME_BYTES];
	uint8_t reserved1[64];
	struct region_slot slots[REGION_SLOTS];
	struct region_card cards[LIMITS_CARDS];
	/* where a card's own activity file is missing; see books/activity.h */
	_Alignas(64) uint8_t activity[LIMITS_CARDS][REGION_ACTIVITY_BYTES];
	struct region_turns turns[LIMITS_CARDS];
};

/* Frozen: the agent and other builds of this library read the same bytes. */
_Static_assert(sizeof(struct region_slot) == 64, "layout");
_Static_assert(offsetof(struct region_slot, unsettled_bytes) == 56, "layout");
_Static_assert(offsetof(struct region, limits_revision) == 52, "layout");
_Static_assert(offsetof(struct region, lock) == 64, "layout");
_Static_assert(offsetof(struct region, slots) == 256, "layout");
_Static_assert(offsetof(struct region, cards) == 256 + 64 * REGION_SLOTS, "layout");
_Static_assert(offsetof(struct region_card, context_source) == 60, "layout");
_Static_assert(offsetof(struct region_card, context_bytes) == 72, "layout");
_Static_assert(offsetof(struct region_card, credit_ns) == 88, "layout");
_Static_assert(offsetof(struct region_card, used_bytes) == 240, "layout");
_Static_assert(sizeof(struct region_card) == 240 + 24 * REGION_SLOTS, "layout");
_Static_assert(offsetof(struct region, activity) ==
		       offsetof(struct region, cards) + sizeof(struct region_card) * LIMITS_CARDS,
	       "layout");
_Static_assert(offsetof(struct region, turns) ==
		       offsetof(struct region, activity) +
			       sizeof(uint8_t[LIMITS_CARDS][REGION_ACTIVITY_BYTES]),
	       "layout");
_Static_assert(sizeof(struct region_turns) == sizeof(uint64_t[2][REGION_SLOTS]), "layout");
_Static_assert(sizeof(struct region) <= REGION_BYTES, "layout");

/*
 * Maps the region of the container and lays it out if nobody has. NULL with a
 * reason when it is not usable; `may_create` also makes a missing file.
 */
struct region *region_open(const char *path, const struct limits *limits, bool may_create,
			   char *reason, size_t reason_bytes);

/*
 * The lock of all processes of the container. False when it can never be taken
 * again: then nothing may be allowed. A dead holder costs nothing but a look
 * for who else has died.
 */
bool region_lock(struct region *region);
void region_unlock(struct region *region);
/* Makes it, in memory that nobody uses yet. */
bool region_make_lock(pthread_mutex_t *lock);
/* Is it still of the kind that was made? */
bool region_has_lock(const struct region *region);

/*
 * Under the lock. The slot of this process, claimed if it has none; -1 when all
 * are taken by the living.
 */
int region_claim(struct region *region);
/* Under the lock. Empties one slot, of the living too. */
void region_clear(struct region *region, unsigned slot);
/* Under the lock. Clears the slots of dead processes; returns how many. */
unsigned region_reap(struct region *region);
/* Under the lock. Bytes that all slots hold of a card; never wraps. */
uint64_t region_held(const struct region *region, unsigned card);

/*
 * Each process locks a byte behind the end of the region's file for its slot. The lock ends with
 * the process, and every pid namespace sees it. After a restart of the container the namespace is
 * another one, in which pids of the old one mean nothing. The file is remembered for the other
 * call.
 */
void slot_lock_use(const char *path);
/*
 * Until exec or death, whatever descriptors the application closes. False where there are no such
 * locks: then a missing one proves nothing.
 */
bool slot_lock_hold(unsigned slot);
