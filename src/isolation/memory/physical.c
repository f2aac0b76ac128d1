/*
 * cuMemCreate and what keeps its memory alive.
 *
 * The memory goes when the last handle is released and the last mapping undone,
 * in either order. An entry of KIND_PHYSICAL counts both; each mapping has one
 * of KIND_MAPPING that names the handle, and the entry, as the driver gives
 * handles out again: also while another thread is still counting off the last
 * mapping of what had the number before.
 */
#include "books/memory_charge.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "driver/cards.h"

/* Threads may share all of these: the counts change under the table's lock. */

/* A tag; charges know another (books/memory_charge.c). */
enum { TAG_EXPORTED = 2 };

/* Its last handle and mapping are gone; a descriptor in any process may still keep the memory. */
static void end_charge(struct charge_taken *taken)
{
	if (taken->entry.kind == KIND_PHYSICAL && taken->entry.tag == TAG_EXPORTED)
		charge_taken_stays(taken);
	else
		charge_taken_done(taken, true);
}

/* The driver has given the number out again: what had it before is gone. */
static void forget(CUmemGenericAllocationHandle handle)
{
	struct charge_taken taken;

	charge_take(&taken, KIND_PHYSICAL, handle);
	end_charge(&taken);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct charge charge;
	CUdevice device;
	int card;

	ENTER(cuMemCreate, handle, size, prop, flags);
	/* A NULL is the driver's to refuse. */
	if (!handle || !prop || location_is_host(&prop->location))
		return cuda.cuMemCreate(handle, size, prop, flags);
	CUresult result = device_of_location(&prop->location, &device);

	if (result == CUDA_SUCCESS)
		result = card_find(device, &card);
	if (result == CUDA_SUCCESS)
		result = charge_card(&charge, card, size);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMemCreate(handle, size, prop, flags);
	if (result != CUDA_SUCCESS) {
		charge_drop(&charge);
		return result;
	}
	forget(*handle);
	charge_keep(&charge, KIND_PHYSICAL, *handle, size, false);
	return result;
}

/*
 * When nothing keeps the memory any more the entry moves to `taken`. `mapping`:
 * the one that ends; else it is a handle.
 */
static void let_go(uint64_t handle, const struct holding *mapping, struct charge_taken *taken)
{
	taken->entry.kind = KIND_NONE;
	holdings_lock();
	struct holding *entry = holdings_at(KIND_PHYSICAL, handle);

	if (entry && (!mapping || mapping->other_serial == entry->serial)) {
		uint32_t *count = mapping ? &entry->mappings : &entry->handles;

		*count -= *count > 0;
		if (!entry->handles && !entry->mappings) {
			taken->entry = *entry;
			holdings_remove(entry);
		}
	}
	holdings_unlock();
	if (taken->entry.kind != KIND_NONE)
		calls_begin();
}

static void note(uint64_t handle, uint32_t more_handles, uint32_t tag)
{
	holdings_lock();
	struct holding *entry = holdings_at(KIND_PHYSICAL, handle);

	if (entry) {
		entry->handles += more_handles;
		entry->tag |= tag;
	}
	holdings_unlock();
}

/* The driver would not: count it again, and put back what was taken out. */
static void hold_again(uint64_t handle, struct charge_taken *taken)
{
	if (taken->entry.kind == KIND_NONE) {
		note(handle, 1, 0);
		return;
	}
	taken->entry.handles++;
	charge_taken_done(taken, false);
}

/* Counts before the call: the number may be another memory's the moment it is free. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct charge_taken taken;

	ENTER(cuMemRelease, handle);
	let_go(handle, NULL, &taken);
	const CUresult result = cuda.cuMemRelease(handle);

	if (result == CUDA_SUCCESS)
		end_charge(&taken);
	else
		hold_again(handle, &taken);
	return result;
}

HOOK(cuMemExportToShareableHandle,
     (void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
      unsigned long long flags),
     (shared, handle, type, flags), (void)0,
     if (result == CUDA_SUCCESS) note(handle, 0, TAG_EXPORTED))

/* The driver gives the handle that was mapped, so the number is known here. */
HOOK(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),
     (handle, address), (void)0, if (result == CUDA_SUCCESS) note(*handle, 1, 0))

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	ENTER(cuMemMap, ptr, size, offset, handle, flags);
	const CUresult result = cuda.cuMemMap(ptr, size, offset, handle, flags);

	if (result == CUDA_SUCCESS) {
		/* Unknown (imported) memory too: unmapping walks over it. */
		struct holding mapping = {.key = ptr,
					  .kind = KIND_MAPPING,
					  .card = CARD_FOREIGN,
					  .bytes = size,
					  .other = handle};

		holdings_lock();
		struct holding *entry = holdings_at(KIND_PHYSICAL, handle);

		if (entry) {
			entry->mappings++;
			mapping.other_serial = entry->serial;
		}
		holdings_add(&mapping);
		holdings_unlock();
	}
	return result;
}

/* One call may undo several neighbouring mappings. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	ENTER(cuMemUnmap, ptr, size);
	calls_begin();
	const CUresult result = cuda.cuMemUnmap(ptr, size);
	const uint64_t end = ptr + size;
	uint64_t at = ptr;
	struct holding mapping;

	while (result == CUDA_SUCCESS && at < end && holdings_take(KIND_MAPPING, at, &mapping)) {
		struct charge_taken taken;

		let_go(mapping.other, &mapping, &taken);
		end_charge(&taken);
		at += mapping.bytes ? mapping.bytes : end - at;
	}
	calls_end();
	return result;
}
