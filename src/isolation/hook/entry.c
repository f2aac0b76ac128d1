/*
 * The way into every CUDA hook: loads the driver at the first call, notices a
 * fork, and says whether there is a slice to guard.
 */
#include "books/entry.h"

#include "books/calls.h"
#include "books/holdings.h"
#include "compute/meter.h"
#include "hook/primary.h"
#include "memory/graphs.h"
#include "memory/pieces.h"
#include "memory/pools.h"
#include "slice/log.h"
#include "slice/process.h"
#include "slice/slice.h"
#include "unasked/overhead.h"

#include <stdatomic.h>

/* Without these nothing can be capped. All others may be missing. */
static const char *missing_function(void)
{
	if (!cuda.cuInit)
		return "cuInit";
	if (!cuda.cuMemAlloc_v2)
		return "cuMemAlloc_v2";
	if (!cuda.cuMemFree_v2)
		return "cuMemFree_v2";
	if (!cuda.cuMemGetInfo_v2)
		return "cuMemGetInfo_v2";
	if (!cuda.cuCtxGetCurrent)
		return "cuCtxGetCurrent";
	if (!cuda.cuCtxGetDevice)
		return "cuCtxGetDevice";
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

/* The child has its parent's memory but not its contexts and allocations. */
void enter_notice_fork(void)
{
	if (!process_was_forked())
		return;
	holdings_after_fork();
	calls_after_fork();
	pools_after_fork();
	pieces_after_fork();
	graphs_after_fork();
	overhead_after_fork();
	meter_after_fork();
	primary_after_fork();
}

enum entry enter(void)
{
	static atomic_bool is_started;

	if (driver_is_inside())
		return ENTRY_PASS;
	enter_notice_fork();
	if (!atomic_load_explicit(&is_started, memory_order_acquire)) {
		start();
		atomic_store_explicit(&is_started, true, memory_order_release);
	}
	switch (slice_state()) {
	case SLICE_OPEN:
		return ENTRY_OPEN;
	case SLICE_CLOSED:
		return ENTRY_CLOSED;
	default:
		return ENTRY_PASS;
	}
}
