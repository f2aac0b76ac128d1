/* Starting: callbacks, by which lower folders reach what is above them, and cuInit. */
#include "hook/start.h"

#include "books/memory_limit.h"
#include "books/calls.h"
#include "books/memory_charge.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "books/slice_region.h"
#include "compute/meter.h"
#include "driver/driver.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "slice/log.h"
#include "slice/slice.h"
#include "overhead/overhead.h"

static void forget_parent(void)
{
	holdings_after_fork();
	calls_after_fork();
	charge_after_fork();
	pools_after_fork();
	graphs_after_fork();
	overhead_after_fork();
	meter_after_fork();
	contexts_after_fork();
}

static void refresh(int card, uint64_t wanted)
{
	overhead_adopt_current();
	overhead_refresh(card, wanted);
}

/* Pools and contexts may have given memory back since we looked. */
static void reclaim(int card)
{
	pools_refresh(card);
	overhead_refresh_now(card);
}

/* When the library is loaded, and at cuInit: other libraries' constructors may run before ours. */
void register_callbacks(void)
{
	static const struct account_sources sources = {
		.refresh = refresh, .reclaim = reclaim, .follow = pools_follow_card};

	enter_register(forget_parent);
	account_register(&sources);
}

/* Closed means no card; a process without a slot could not be counted. Any thread. */
CUresult cuInit(unsigned int Flags)
{
	register_callbacks();
	ENTER(cuInit, Flags);
	if (slice_slot() < 0) {
		/* Else a line has said what is wrong with the region. */
		if (slice_state() == SLICE_OPEN)
			log_line(
				"%d processes of this container use its slice: no room for another",
				REGION_SLOTS);
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	/* WSL's driver looks itself up: it must not find us. */
	driver_go_inside();
	const CUresult result = cuda.cuInit(Flags);

	driver_come_back();
	return result;
}
