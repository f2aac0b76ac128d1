/*
 * Memory that no allocation call asks for: contexts, loaded code, local memory,
 * heaps. Counted after the call that made it; see overhead/overhead.c.
 */
#pragma once

#include "books/holdings.h"
#include "driver/context_scope.h"
#include "slice/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. */

/* The making of one context; begin in the thread that makes it. */
struct overhead_context {
	CUdevice device;
	int card;
	bool is_first; /* of this process on this card */
	bool is_sure;  /* of what it costs */
	bool was_listed;
	CUcontext home;    /* of a green one, which is always measured; NULL for others */
	uint64_t expected; /* reserved before; 0: the price is not known */
};

/*
 * Success, or the error that the call shall return: no room for what it is known to cost.
 * `home`: the primary context of a green one; NULL for any other.
 */
CUresult overhead_begin_context(struct overhead_context *making, CUdevice device, CUcontext home);
void overhead_end_context(struct overhead_context *making, CUresult result, CUcontext context);
/*
 * The current context, if it was made by a call without a hook (cuGLCtxCreate,
 * cuVDPAUCtxCreate, a later driver's): from now on it is counted. Cheap for one that is.
 */
void overhead_adopt_current(void);
/*
 * Behind a call that may end a context (calls_begin() before it); `ended` is NULL when it did not.
 * What it cost and what was allocated in it is free again.
 */
void overhead_end_forget(CUcontext ended);

/* After a call that may have brought code or widened a heap on the current context's card. */
void overhead_note_growth(bool is_large);
/* After one that may have taken some off, on whatever card. */
void overhead_note_unload(void);

/*
 * After a launch: the first one of a function or graph may have brought its code and local memory
 * to the card of its stream. What a stream only records brings nothing yet.
 */
void overhead_note_launch(const void *what, CUstream stream, CUresult result);
/* Code is gone, and with it the names by which its launches were known. */
void overhead_forget_launches(void);

/* Something may have changed without any call that says so. */
void overhead_stale(int card);
/* The same, but not worth a look at once: what it should cost is in the books. */
void overhead_stale_later(int card);
/* Something has, on cards of a bit each: no allocation may pass before it is measured. */
void overhead_stale_urgently(uint32_t cards);

/* Measure again if there is a staleness and the last look is old enough; or at once. */
void overhead_refresh(int card, uint64_t wanted);
void overhead_refresh_now(int card);

void overhead_after_fork(void);
void contexts_after_fork(void);

/* Memory of others that this process has opened, which NVML may list with it. */
uint64_t imports_bytes(int card);

/* What a thread's stack costs on a card, for each byte of it. */
uint64_t overhead_threads(CUdevice device);

/* What has been launched before (overhead/overhead.c); no lock: every launch asks. */
bool launched_has(uint64_t what);
void launched_add(uint64_t what);

/* The steps that the files of this folder share. */
/* A context is there or gone; a green one is no `is_home`. And in a forked child: none is. */
void overhead_count_context(int card, bool is_home, int more);
void overhead_forget_counts(void);
bool overhead_has_context(int card);
/* Then one function may bring its code more than once. */
bool overhead_has_several_contexts(void);
/* Brings the books to that, where NVML does not tell. */
void overhead_follow_expected(void);
/* Sets the overhead by what NVML holds against this process; false when that cannot be had now. */
bool overhead_measure(int card, uint64_t *listed_bytes);

/* Images of code that are loaded, and how much of a card they take: overhead/images.c. */
/* The most that its code takes. A cubin, a fat binary or PTX as the driver takes it; 0: unknown. */
uint64_t image_bytes(const void *image);
uint64_t image_file_bytes(const char *path);

/* A module, which goes with its context, or a library, which is in all of them (NULL). */
void images_loaded(const void *handle, uint64_t bytes, CUcontext home);
void images_unloaded(const void *handle);
/* One went with its context. */
void images_gone(const struct holding *entry);

/* Bytes of code on a card, where this process has so many contexts. */
uint64_t images_code(int card, unsigned contexts);

void images_after_fork(void);
