/* How much memory there is, as CUDA tells it: the slice's figures. */
#include "books/account.h"
#include "books/entry.h"
#include "driver/cards.h"
#include "memory/pools.h"
#include "slice/limits.h"
#include "unasked/overhead.h"
#include "view/view.h"

/* Saturating throughout: what is held can be more than the slice for a moment. */
void view_of(int card, uint64_t card_free, uint64_t card_total, bool reap, struct view *view)
{
	const uint64_t limit = account_limit(card);
	const uint64_t held = account_held(card, reap);

	view->total = limit < card_total ? limit : card_total;
	view->used = held < view->total ? held : view->total;
	view->free = view->total - view->used;
	if (view->free > card_free)
		view->free = card_free;
}

/* Before the card's own figures become the slice's. */
static void see_slice(int card, uint64_t card_free, uint64_t card_total, struct view *view)
{
	pools_after_sync();
	overhead_adopt_current();
	overhead_stale(card);
	overhead_refresh(card, UINT64_MAX);
	view_of(card, card_free, card_total, true, view);
}

/* The interface before CUDA 3.2 has 32 bits for a size. */
#define NARROWED(type, bytes) ((type)((bytes) > (type)-1 ? (type)-1 : (bytes)))

/* Either pointer may be NULL: OptiX asks for the total only. */
#define TELLS_FREE(name, type)                                                                     \
	CUresult name(type *free, type *total)                                                     \
	{                                                                                          \
		size_t card_free, card_total;                                                      \
		struct view view;                                                                  \
		int card;                                                                          \
                                                                                                   \
		ENTER(name, free, total);                                                          \
		CUresult result = cuda.cuMemGetInfo_v2(&card_free, &card_total);                   \
                                                                                                   \
		if (result == CUDA_SUCCESS)                                                        \
			result = card_current(&card);                                              \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		see_slice(card, card_free, card_total, &view);                                     \
		if (free)                                                                          \
			*free = NARROWED(type, view.free);                                         \
		if (total)                                                                         \
			*total = NARROWED(type, view.total);                                       \
		return CUDA_SUCCESS;                                                               \
	}

TELLS_FREE(cuMemGetInfo, unsigned)
TELLS_FREE(cuMemGetInfo_v2, size_t)

#define TELLS_TOTAL(name, type)                                                                    \
	HOOK(                                                                                      \
		name, (type * bytes, CUdevice device), (bytes, device), (void)0,                   \
		if (result == CUDA_SUCCESS && bytes) {                                             \
			const uint64_t limit = account_limit(card_of_device(device));              \
                                                                                                   \
			*bytes = limit < *bytes ? NARROWED(type, limit) : *bytes;                  \
		})

TELLS_TOTAL(cuDeviceTotalMem, unsigned)
TELLS_TOTAL(cuDeviceTotalMem_v2, size_t)
