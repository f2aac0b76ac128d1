/*
 * What a context costs, as the container's processes find it out for each other.
 * NVML's figure is sure. A card's total may have had a neighbour's memory come in
 * the same moment: then a context is measured anew a few times and the cheapest
 * price counts, and none far from what such a card usually takes is believed.
 */
#include "books/slice_region.h"
#include "driver/cards.h"
#include "slice/slice.h"
#include "unasked/overhead.h"

#define MIB (1024ull * 1024)

/* How a price was found out: as many times by the change of the total, or by NVML. */
enum { UNKNOWN, MEASURED_ENOUGH = 4, LISTED = 255 };

/* Contexts grow with the card's multiprocessors (107 MiB at 34, 555 at 188). */
uint64_t overhead_usual_price(CUdevice device)
{
	int count = 0;

	if (!cuda.cuDeviceGetAttribute ||
	    cuda.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
		    CUDA_SUCCESS)
		count = 132;
	return (count < 34 ? 107u : 107u + (unsigned)(count - 34) * 3u) * MIB;
}

uint64_t overhead_price(int card, bool is_first, bool *is_sure)
{
	struct region_card *books = &slice_region()->cards[card];
	const uint64_t bytes = __atomic_load_n(&books->context_bytes[!is_first], __ATOMIC_RELAXED);

	*is_sure = bytes && __atomic_load_n(&books->context_source[!is_first], __ATOMIC_RELAXED) >=
				    MEASURED_ENOUGH;
	return bytes;
}

static void set(struct region_card *books, bool is_first, uint64_t bytes, unsigned source)
{
	__atomic_store_n(&books->context_bytes[!is_first], bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&books->context_source[!is_first], (uint8_t)source, __ATOMIC_RELAXED);
}

void overhead_learn_price_by_change(int card, bool is_first, uint64_t usual, uint64_t bytes)
{
	struct region_card *books = &slice_region()->cards[card];

	if (!region_lock(slice_region()))
		return;
	const unsigned source = books->context_source[!is_first];
	const uint64_t known = books->context_bytes[!is_first];

	/* A neighbour's memory that went: that much less is not believed of a first one. */
	if (is_first && bytes < usual / 2)
		bytes = usual / 2;
	if (source < MEASURED_ENOUGH)
		set(books, is_first, known && known < bytes ? known : bytes, source + 1);
	region_unlock(slice_region());
}

void overhead_learn_price_by_nvml(int card, bool is_first, uint64_t bytes)
{
	struct region_card *books = &slice_region()->cards[card];

	if (!region_lock(slice_region()))
		return;
	const bool is_listed = books->context_source[!is_first] == LISTED;
	const uint64_t known = books->context_bytes[!is_first];

	set(books, is_first, is_listed && known > bytes ? known : bytes, LISTED);
	region_unlock(slice_region());
}
