/*
 * What a kernel takes by itself is the least that it was seen to take, and neighbours that have
 * shares leave the card now and then. But a tenant with a small share beside one that takes all
 * the rest never finds it empty, and where its kernels last a few turns of the card, its guess is
 * off by a part of a turn. So it asks on its page, a few times a second: the others begin nothing
 * until what it launches then has ended. Nothing is lost by that, since the card is at work, and
 * whoever waits has its credit afterwards. Slices without a cap, and older versions of this
 * library, do not yield: beside them nothing is asked.
 */
#include "compute/quiet.h"

#include "books/slice_region.h"
#include "compute/busy.h"
#include "compute/credit.h"
#include "compute/estimate.h"
#include "compute/neighbours.h"
#include "slice/limits.h"

/* All that others may ask for together: so much, and then not for so long. */
#define MOST_NS 12000000u
#define PAUSE_NS 250000000u

/* Nobody looks at the pages of others more often than that; see compute/neighbours.c. */
#define NOTICED_NS 700000u
/* For what they have out to end. */
#define PATIENCE_NS 8000000u

/* What should have ended may take so many times as long: its slice tells when it has. */
enum { OUT_AT_MOST_TIMES = 2 };

/* Who did nothing for so long need not be asked. */
#define LATELY_NS 20000000u

static uint64_t granted_until_ns[LIMITS_CARDS];

uint64_t quiet_of_others_ns(int card, uint64_t now_ns)
{
	const uint64_t asked_ns = neighbours_quiet_until_ns(card, now_ns);
	struct activity *page = activity_own_page(card);
	uint64_t *granted_ns = &granted_until_ns[card];

	if (!atomic_load_explicit(&page->yields, memory_order_relaxed))
		atomic_store(&page->yields, 1);

	if (asked_ns <= now_ns)
		return 0;
	if (now_ns >= *granted_ns + PAUSE_NS)
		*granted_ns = now_ns + MOST_NS;
	const uint64_t until_ns = asked_ns < *granted_ns ? asked_ns : *granted_ns;

	return until_ns > now_ns ? until_ns - now_ns : 0;
}

static void ask(struct meter *meter, uint64_t until_ns)
{
	atomic_store(&activity_own_page(meter->card)->quiet_until_ns, until_ns);
	meter->is_quiet = until_ns != 0;
}

bool quiet_begin(struct meter *meter, uint64_t what, uint64_t now_ns)
{
	if (!credit_is_capped(meter->card) || now_ns - meter->mixed_ns < BUSY_MIXED_NS ||
	    !estimate_wants_quiet(what, now_ns) ||
	    !neighbours_are_at_work(meter->card, LATELY_NS) ||
	    !neighbours_yield(meter->card, LATELY_NS, meter->place) ||
	    neighbours_out_until_ns(meter->card, now_ns, 1) > now_ns + PATIENCE_NS)
		return false;
	ask(meter, now_ns + MOST_NS);
	return true;
}

bool quiet_is_reached(const struct meter *meter, uint64_t what, uint64_t since_ns, uint64_t now_ns)
{
	if (now_ns - since_ns < NOTICED_NS)
		return false;
	const bool is_quiet =
		neighbours_out_until_ns(meter->card, now_ns, OUT_AT_MOST_TIMES) <= now_ns;

	if (!is_quiet && now_ns - since_ns < PATIENCE_NS)
		return false;
	estimate_note_quiet(what, is_quiet, now_ns);
	return true;
}

void quiet_end(struct meter *meter)
{
	if (meter->is_quiet)
		ask(meter, 0);
}
