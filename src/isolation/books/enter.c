/*
 * The way into every hook: CUDA's load the driver at the first call; all notice a
 * fork, and say whether there is a slice to guard.
 */
#include "books/enter.h"

#include "books/slice_region.h"
#include "slice/process.h"
#include "slice/slice.h"

#include <stdatomic.h>

static void (*_Atomic forget_parent)(void); /* NULL: not registered yet */

void enter_register(void (*forget)(void))
{
	atomic_store(&forget_parent, forget);
}

/* Without these nothing can be capped. All others may be missing. */
static const char *missing_function(void)
{
#define NEEDS(name)                                                                                \
	if (!cuda.name)                                                                            \
	return #name
	NEEDS(cuInit);
	NEEDS(cuMemAlloc_v2);
	NEEDS(cuMemFree_v2);
	NEEDS(cuMemGetInfo_v2);
	NEEDS(cuCtxGetCurrent);
	NEEDS(cuCtxGetDevice);
	if (!cuda.cuDeviceGetUuid && !cuda.cuDeviceGetUuid_v2)
		return "cuDeviceGetUuid";
	return NULL;
}

static void start(void)
{
	if (!driver_load_cuda(true))
		return;
	const char *missing = missing_function();

	if (missing && slice_state() == SLICE_OPEN)
		slice_close("the driver has no %s", missing);
}

enum entry enter_slice(void)
{
	if (driver_is_inside())
		return ENTRY_PASS;
	/* The child has its parent's memory but not its contexts and allocations. */
	void (*const forget)(void) = forget_parent;

	if (forget && process_was_forked())
		forget();
	switch (slice_state()) {
	case SLICE_OPEN:
		return slice_open_region() ? ENTRY_OPEN : ENTRY_CLOSED;
	case SLICE_CLOSED:
		return ENTRY_CLOSED;
	default:
		return ENTRY_PASS;
	}
}

enum entry enter(void)
{
	static atomic_bool is_started;

	if (driver_is_inside())
		return ENTRY_PASS;
	if (!atomic_load_explicit(&is_started, memory_order_acquire)) {
		start();
		atomic_store_explicit(&is_started, true, memory_order_release);
	}
	return enter_slice();
}
