/* One allocation on its way through reserve, call and keep or drop; see books/memory_charge.c. */
#pragma once

#include "books/memory_limit.h"
#include "books/holdings.h"

/* A reservation; belongs to the thread that made it. */
struct charge {
	int card;
	uint64_t bytes;
};

/* Reserves on the current context's card, or returns the error that the call shall return. */
CUresult charge_current(struct charge *charge, uint64_t bytes);
CUresult charge_card(struct charge *charge, int card, uint64_t bytes);
/* Reserves more for the same call. */
CUresult charge_more(struct charge *charge, uint64_t bytes);

/* The call succeeded and took `taken` bytes, known by `key`; managed ones are there or not. */
void charge_keep(struct charge *charge, enum holding_kind kind, uint64_t key, uint64_t taken,
		 bool is_managed);
/* The call failed. */
void charge_drop(struct charge *charge);

/* An entry taken out of the table while the driver frees it. */
struct charge_taken {
	struct holding entry; /* kind KIND_NONE: not in the books */
};

void charge_take(struct charge_taken *taken, enum holding_kind kind, uint64_t key);
/* Releases it, or puts it back when the driver would not free it. */
void charge_taken_done(struct charge_taken *taken, bool is_freed);
/* The key is gone, but something else may keep the memory: charged until the process ends. */
void charge_taken_stays(const struct charge_taken *taken);

/* Everything that was allocated in this context went with it. */
void charge_forget_context(CUcontext context);

/* Bytes of managed memory that this process holds of a card, which may be there or not. */
uint64_t charge_managed(int card);
/* Any of its memory may be that from now on. */
void charge_expect_managed(void);

void charge_after_fork(void);

/*
 * Whole hooks (books/enter.h). ALLOCATES: reserves `bytes`, calls, and then keeps what came of it
 * at `given`; `keep` may change the `result`. FREES: the entry goes first, because as soon as
 * the driver has the key back it may give it to another thread; an unknown key is left to the
 * driver.
 */
#define ALLOCATES(given, bytes, keep, name, parameters, arguments)                                 \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct charge charge;                                                              \
                                                                                                   \
		ENTER_WITH(name, arguments);                                                       \
		if (!(given))                                                                      \
			return cuda.name arguments;                                                \
		CUresult result = charge_current(&charge, bytes);                                  \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = cuda.name arguments;                                                      \
		if (result == CUDA_SUCCESS)                                                        \
			keep;                                                                      \
		else                                                                               \
			charge_drop(&charge);                                                      \
		return result;                                                                     \
	}

#define FREES(kind, key, name, parameters, arguments)                                              \
	HOOK(name, parameters, arguments, struct charge_taken taken;                               \
	     charge_take(&taken, kind, (uint64_t)(uintptr_t)(key)),                                \
	     charge_taken_done(&taken, result == CUDA_SUCCESS))
