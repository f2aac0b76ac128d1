/*
 * What lower folders have done for them by higher ones: they declare it, and it is
 * put together here, where all parts are known.
 */
#include "books/account.h"
#include "books/calls.h"
#include "books/charge.h"
#include "books/entry.h"
#include "books/holdings.h"
#include "compute/meter.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "unasked/contexts.h"
#include "unasked/overhead.h"

void entry_forget_parent(void)
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

const struct account_sources account_sources = {
	.refresh = refresh, .reclaim = reclaim, .follow = pools_follow_card};
