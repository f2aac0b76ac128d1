/*
 * A page tells what its slice holds, and whether calls are out that change it. So who reads a
 * card's total before and after a call of its own can take off what neighbours' totals changed by
 * meanwhile, unless one has a call out at either moment. A container can write anything into its
 * page, so a page is trusted only within the bounds of unasked/overhead.c.
 */
#include "books/totals.h"

#include "books/slice_region.h"
#include "driver/timer.h"
#include "slice/slice.h"

#include <unistd.h>

/* A call that is out for longer belongs to a process that died, or that nobody waits for. */
#define OUT_NS 1000000000u
#define WAIT_NS 5000000u
#define NAP_NS 100000u

void totals_publish(int card)
{
	struct activity *page = activity_own_page(card);

	activity_sign(page);
	atomic_store(&page->held_bytes, region_held(slice_region(), (unsigned)card));
	atomic_store(&page->moved_ns, timer_real_now_ns());
}

void totals_tell_calls(uint32_t calls_out)
{
	const uint64_t now_ns = timer_real_now_ns();

	for (unsigned card = 0; card < slice_limits()->card_count; card++) {
		struct activity *page = activity_own_page((int)card);

		atomic_store_explicit(&page->moved_ns, now_ns, memory_order_relaxed);
		atomic_store(&page->calls_out, calls_out);
	}
}

/* What is no page of ours holds nothing. */
static void add_page(int fd, void *argument)
{
	struct totals *held = argument;
	struct activity page;
	const bool is_page = pread(fd, &page, sizeof(page), 0) == sizeof(page) &&
			     page.magic == ACTIVITY_MAGIC && page.version >= ACTIVITY_VERSION;

	close(fd);
	if (!is_page)
		return;
	held->bytes += page.held_bytes;
	held->stamp += page.moved_ns;
	if (page.calls_out && timer_real_now_ns() - page.moved_ns < OUT_NS)
		held->is_still = false;
}

static struct totals look(int card)
{
	struct totals held = {.is_still = true};

	activity_each_neighbour(card, add_page, &held);
	return held;
}

struct totals totals_of_neighbours(int card, bool may_wait)
{
	const uint64_t end_ns = timer_real_now_ns() + WAIT_NS;
	struct totals held = look(card);

	while (may_wait && !held.is_still && timer_real_now_ns() < end_ns) {
		timer_real_nap(NAP_NS);
		held = look(card);
	}
	return held;
}
