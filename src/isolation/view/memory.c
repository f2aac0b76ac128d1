/* How much memory there is, as CUDA and NVML tell it: the slice's figures, of one picture. */
#include "books/memory_limit.h"
#include "books/enter.h"
#include "driver/cards.h"
#include "driver/stream.h"
#include "memory/pools.h"
#include "slice/limits.h"
#include "overhead/overhead.h"
#include "view/nvml_entry.h"

struct view {
	uint64_t total, used, free; /* used + free <= total: the card itself may be fuller */
};

/* Threads may share all of these. */

/* From the card's real figures. Saturating: what is held can be more than the slice for a moment.
 */
static void view_of(int card, uint64_t card_free, uint64_t card_total, struct view *view)
{
	const uint64_t limit = account_limit(card);
	const uint64_t held = account_held(card, true);

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
	view_of(card, card_free, card_total, view);
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

/*
 * Where the card's memory is the system's (GB10) NVML does not tell of it. The
 * slice has its figures all the same; of the card itself CUDA knows, if a
 * context of it is current.
 */
static bool unified_view(nvmlDevice_t device, struct view *view)
{
	size_t card_free = SIZE_MAX, card_total = SIZE_MAX;
	const int card = nvml_card(device);
	int current;

	if (account_limit(card) == LIMITS_NO_CAP)
		return false;
	if (cuda.cuCtxGetDevice && cuda.cuMemGetInfo_v2) {
		const CUstreamCaptureMode mode = capture_exempt();

		if (card_current(&current) != CUDA_SUCCESS || current != card ||
		    cuda.cuMemGetInfo_v2(&card_free, &card_total) != CUDA_SUCCESS)
			card_free = card_total = SIZE_MAX;
		capture_restore(mode);
	}
	view_of(card, card_free, card_total, view);
	return true;
}

/* `is_asked_well`: what NVML refuses for its own reasons stays refused. */
#define TELLS_MEMORY(name, type, is_asked_well, more)                                              \
	nvmlReturn_t name(nvmlDevice_t device, type *memory)                                       \
	{                                                                                          \
		struct view view;                                                                  \
                                                                                                   \
		NVML_ENTER(name, device, memory);                                                  \
		const nvmlReturn_t result = nvml.name(device, memory);                             \
                                                                                                   \
		if (result == NVML_SUCCESS)                                                        \
			view_of(nvml_card(device), memory->free, memory->total, &view);            \
		else if (result != NVML_ERROR_NOT_SUPPORTED || !memory || !(is_asked_well) ||      \
			 !unified_view(device, &view))                                             \
			return result;                                                             \
		memory->total = view.total;                                                        \
		memory->used = view.used;                                                          \
		memory->free = view.free;                                                          \
		more;                                                                              \
		return NVML_SUCCESS;                                                               \
	}

TELLS_MEMORY(nvmlDeviceGetMemoryInfo, nvmlMemory_t, true, (void)0)
/* Nothing is reserved in a slice: what the driver keeps was never part of it. */
TELLS_MEMORY(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, memory->version == nvmlMemory_v2,
	     memory->reserved = 0)
