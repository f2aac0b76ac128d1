/*
 * What a context costs, as the container's processes find it out for each other: by NVML's
 * figure, or by a table where it has none.
 */
#include "books/slice_region.h"
#include "slice/slice.h"
#include "unasked/overhead.h"

#define MIB (1024ull * 1024)

/* How a price was found out: so many times NVML had no figure, or it had one. */
enum { UNKNOWN, ASKED_ENOUGH = 4, LISTED = 255 };

static uint64_t attribute(CUdevice device, CUdevice_attribute which, int otherwise)
{
	int value = 0;

	if (!cuda.cuDeviceGetAttribute ||
	    cuda.cuDeviceGetAttribute(&value, which, device) != CUDA_SUCCESS || value <= 0)
		value = otherwise;
	return (uint64_t)value;
}

uint64_t overhead_threads(CUdevice device)
{
	return attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132) *
	       attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048);
}

/*
 * Most of it is room for each thread that the card can run at once. Seen elsewhere: T4 105 MiB
 * (107 here), RTX 4060 Ti 107 (128), Titan V 320 (332), RTX PRO 6000 555 (561).
 */
uint64_t overhead_usual_price(CUdevice device)
{
	return 32 * MIB + overhead_threads(device) * 1920;
}

uint64_t overhead_price(int card, bool is_first, bool *is_sure)
{
	struct region_card *books = &slice_region()->cards[card];

	*is_sure = __atomic_load_n(&books->context_source[!is_first], __ATOMIC_RELAXED) >=
		   ASKED_ENOUGH;
	return __atomic_load_n(&books->context_bytes[!is_first], __ATOMIC_RELAXED);
}

void overhead_learn_price(int card, bool is_first, bool is_listed, uint64_t bytes)
{
	struct region_card *books = &slice_region()->cards[card];

	if (!region_lock(slice_region()))
		return;
	const unsigned source = books->context_source[!is_first];
	const uint64_t known = books->context_bytes[!is_first];

	if (is_listed || source < ASKED_ENOUGH) {
		if (source == LISTED && known < bytes)
			bytes = known;
		__atomic_store_n(&books->context_bytes[!is_first], bytes, __ATOMIC_RELAXED);
		__atomic_store_n(&books->context_source[!is_first],
				 (uint8_t)(is_listed ? LISTED : source + 1), __ATOMIC_RELAXED);
	}
	region_unlock(slice_region());
}
