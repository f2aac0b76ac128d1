/*
 * Memory that no allocation call asks for: contexts, loaded code, local memory,
 * heaps. Measured after the call that made it, and counted; see unasked/overhead.c.
 */
#pragma once

#include "books/totals.h"
#include "driver/context_scope.h"
#include "slice/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* A card's total, and what the container's books say of it. */
struct card_usage {
	uint64_t used;
	uint64_t held;
	struct totals neighbours; /* what they say that they hold */
	bool is_of_context;       /* the total is what one of our contexts says, else NVML's */
	bool is_known;            /* the total, and no neighbour was about to change it */
};

/* The making of one context; begin in the thread that makes it. */
struct overhead_context {
	int card;
	bool is_first;    /* of this process on this card */
	bool is_sure;     /* of what it costs */
	bool is_quiesced; /* the card, by its total */
	bool was_listed;
	CUcontext home;    /* of a green one, whose price is nobody else's: it is always measured */
	uint64_t expected; /* reserved before; 0: the price is not known */
	uint64_t usual;    /* what it costs by the table */
	struct card_usage before;
};

/*
 * Success, or the error that the call shall return: no room for what it is known to cost.
 * `home`: the primary context of a green one; NULL for any other.
 */
CUresult overhead_begin_context(struct overhead_context *making, CUdevice device, CUcontext home);
void overhead_end_context(struct overhead_context *making, CUresult result, CUcontext context);
/*
 * The current context, if it was made by a call that we do not know (cuGLCtxCreate,
 * cuVDPAUCtxCreate, a later driver's): from now on it is counted. Cheap for one that is.
 */
void overhead_adopt_current(void);
/*
 * Around a call that may end a context; `ended` is NULL when it did not. What it cost
 * and what was allocated in it is free again.
 */
void overhead_begin_forget(void);
void overhead_end_forget(CUcontext ended);

/*
 * Around a call that may load code or widen a heap on the current context's card, or, if it
 * `unloads`, take code off or change a heap on whatever card it is.
 */
struct overhead_change {
	bool unloads;
	bool is_quiesced; /* measured by the totals; else NVML tells */
	uint32_t cards;   /* a bit for each that it is about */
	struct card_usage before[LIMITS_CARDS];
};
void overhead_begin_change(struct overhead_change *change, bool unloads);
/* `is_large`: to be measured at once, else when it is next looked for. */
void overhead_end_change(const struct overhead_change *change, bool is_large);

/*
 * Around the driver's launch and nothing else: the first one of a function or
 * graph may bring its code and local memory to the card of its stream. With NVML
 * that is looked for at the next allocation, else the card's total tells. What a
 * stream only records brings nothing yet.
 */
struct overhead_launch {
	bool is_new; /* something in it was not launched before */
	bool is_quiesced;
	uint32_t cards; /* a bit for each that something new in it runs on */
	struct card_usage before[LIMITS_CARDS];
	struct context_scope places[LIMITS_CARDS]; /* of the streams */
};
void overhead_begin_launch(struct overhead_launch *launch, const void *what, CUstream stream);
/* `counted`: bytes that it took of its card and others charge. */
void overhead_end_launch(struct overhead_launch *launch, const void *what, CUstream stream,
			 CUresult result, uint64_t counted);
/* The card that is measured by its total; CARD_FOREIGN when none is. */
int overhead_quiesced_card(const struct overhead_launch *launch);

/* The same for a launch of several parts: open, each part, the call, close, each part. */
void overhead_open_launch(struct overhead_launch *launch);
void overhead_begin_part(struct overhead_launch *launch, const void *what, CUstream stream);
void overhead_close_launch(struct overhead_launch *launch, uint64_t counted);
void overhead_end_part(const void *what, CUstream stream);

/* Code is gone, and with it the names by which its launches were known. */
void overhead_forget_launches(void);

/* Something may have changed without any call that says so. */
void overhead_stale(int card);
void overhead_stale_all(void);
/* The same, but not worth a look at once: what it should cost is in the books. */
void overhead_stale_later(int card);
/* Something has, on cards of a bit each: no allocation may pass before it is measured. */
void overhead_stale_urgently(uint32_t cards);

/* Measure again if there is a staleness and the last look is old enough; or at once. */
void overhead_refresh(int card, uint64_t wanted);
void overhead_refresh_now(int card);

void overhead_after_fork(void);

/* A change of the card's total beyond this is a neighbour's, not our context's. */
#define OVERHEAD_MOST_BELIEVED (4096ull * 1024 * 1024)

/* What a context costs by the card's size, where nothing better is known. */
uint64_t overhead_usual_price(CUdevice device);
/* What this container's processes have found out; 0: nothing. */
uint64_t overhead_price(int card, bool is_first, bool *is_sure);
/* A price by the change of the card's total, or by NVML. */
void overhead_learn_price_by_change(int card, bool is_first, uint64_t usual, uint64_t bytes);
void overhead_learn_price_by_nvml(int card, bool is_first, uint64_t bytes);

/*
 * The steps that the files of this folder share. While the container's other calls are held back:
 * before a change, and how much of it was ours, which can be no less than `least` and no more than
 * `most`; 0 where it cannot be known.
 */
void card_usage_read(int card, struct card_usage *look);
int64_t card_usage_change(int card, const struct card_usage *before, int64_t least, int64_t most);
/* A rise beyond `counted` is the current context's code. */
void overhead_add_change(int card, const struct card_usage *before, uint64_t counted);
bool overhead_has_context(int card);
/* Then one function may bring its code more than once. */
bool overhead_has_several_contexts(void);
/* Sets the overhead by what NVML holds against this process; false when that cannot be had now. */
bool overhead_measure(int card, uint64_t *listed_bytes);
