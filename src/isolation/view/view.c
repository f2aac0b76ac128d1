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

static CUresult memory_info(uint64_t *free_bytes, uint64_t *total_bytes)
{
	size_t card_free, card_total;
	struct view view;
	int card;
	CUresult result = cuda.cuMemGetInfo_v2(&card_free, &card_total);

	if (result == CUDA_SUCCESS)
		result = card_current(&card);
	if (result != CUDA_SUCCESS)
		return result;
	pools_after_sync();
	overhead_adopt_current();
	overhead_stale(card);
	overhead_refresh(card, UINT64_MAX);
	view_of(card, card_free, card_total, true, &view);
	*free_bytes = view.free;
	*total_bytes = view.total;
	return CUDA_SUCCESS;
}

/* Either pointer may be NULL: OptiX asks for the total only. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	uint64_t slice_free, slice_total;

	ENTER(cuMemGetInfo_v2, free, total);
	const CUresult result = memory_info(&slice_free, &slice_total);

	if (result == CUDA_SUCCESS && free)
		*free = (size_t)slice_free;
	if (result == CUDA_SUCCESS && total)
		*total = (size_t)slice_total;
	return result;
}

static unsigned int narrow(uint64_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	uint64_t slice_free, slice_total;

	ENTER(cuMemGetInfo, free, total);
	const CUresult result = memory_info(&slice_free, &slice_total);

	if (result == CUDA_SUCCESS && free)
		*free = narrow(slice_free);
	if (result == CUDA_SUCCESS && total)
		*total = narrow(slice_total);
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	ENTER(cuDeviceTotalMem_v2, bytes, dev);
	const CUresult result = cuda.cuDeviceTotalMem_v2(bytes, dev);

	if (result == CUDA_SUCCESS && bytes) {
		const uint64_t limit = account_limit(card_of_device(dev));

		if (limit < *bytes)
			*bytes = (size_t)limit;
	}
	return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	ENTER(cuDeviceTotalMem, bytes, dev);
	const CUresult result = cuda.cuDeviceTotalMem(bytes, dev);

	if (result == CUDA_SUCCESS && bytes) {
		const unsigned int limit = narrow(account_limit(card_of_device(dev)));

		if (limit < *bytes)
			*bytes = limit;
	}
	return result;
}
