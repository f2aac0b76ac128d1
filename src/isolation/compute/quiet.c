/*
 * What kernels take by themselves is the mean of what they take while nobody else is on the card,
 * and neighbours that have shares leave it now and then. But a tenant with a small share beside one
 * that takes all the rest never finds it empty, and where a kind's time varies, the shorter ones
 * find it empty more often. So a slice asks on its page, a few times a second: the others begin
 * nothing until what it launches then has ended. Nothing is lost by that, since the card is at
 * work, and whoever waits has its credit afterwards. Slices without a cap, and older versions of
 * this library, do not yield: beside them nothing is asked.
 */
#include "compute/quiet.h"

#include "books/slice_region.h"
#include "compute/credit.h"
#include "compute/estimate.h"
#include "compute/neighbours.h"
#include "slice/limits.h"

/* Others may ask for so long together, and then not for so many times as long. */
#define MOST_NS 102000000u
enum { PAUSE_TIMES = 20 };
/* Of that, to work in. */
#define WORK_NS 12000000u

/* Nobody looks at the pages of others more often than that; see compute/neighbours.c. */
#define NOTICED_NS 700000u
/* For what they have out to end: more where nothing is known yet. */
#define PATIENCE_NS 8000000u
#define PATIENCE_AT_FIRST_NS 90000000u

/* Who did nothing for so long need not be asked. */
#define LATELY_NS 20000000u

/* What was granted to others, per card. */
struct grant {
	uint64_t from_ns, next_ns; /* the one that lasts; no other before */
};

static struct grant grants[LIMITS_CARDS];

uint64_t quiet_of_others_ns(int card, uint64_t now_ns)
{
	const uint64_t asked_ns = neighbours_quiet_until_ns(card, now_ns);
	struct activity *page = activity_own_page(card);
	struct grant *grant = &grants[card];

	if (!atomic_load_explicit(&page->yields, memory_order_relaxed))
		atomic_store(&page->yields, 1);
	if (asked_ns > now_ns && now_ns >= grant->next_ns) {
		if (!grant->from_ns)
			grant->from_ns = now_ns;
		/* Longer only while somebody's work ends. */
		if (now_ns < grant->from_ns + WORK_NS ||
		    (now_ns < grant->from_ns + MOST_NS &&
		     neighbours_out_until_ns(card, now_ns, false) > now_ns))
			return asked_ns - now_ns;
	}
	if (grant->from_ns) {
		grant->next_ns = now_ns + (now_ns - grant->from_ns) * PAUSE_TIMES;
		grant->from_ns = 0;
	}
	return 0;
}

static void ask(struct meter *meter, uint64_t until_ns)
{
	atomic_store(&activity_own_page(meter->card)->quiet_until_ns, until_ns);
	meter->is_quiet = until_ns != 0;
}

static uint64_t patience_ns(uint64_t what)
{
	return estimate_of(what).is_sure ? PATIENCE_NS : PATIENCE_AT_FIRST_NS;
}

bool quiet_begin(struct meter *meter, uint64_t what, uint64_t now_ns)
{
	if (!credit_is_capped(meter->card) || now_ns < meter->quiet_next_ns ||
	    !estimate_wants_quiet(what, now_ns) || now_ns < grants[meter->card].next_ns ||
	    neighbours_quiet_until_ns(meter->card, now_ns) > now_ns ||
	    !neighbours_are_at_work(meter->card, LATELY_NS) ||
	    !neighbours_yield(meter, LATELY_NS) ||
	    neighbours_out_until_ns(meter->card, now_ns, false) > now_ns + patience_ns(what))
		return false;
	ask(meter, now_ns + patience_ns(what) + WORK_NS);
	meter->quiet_since_ns = now_ns;
	meter->quiet_from_ns = 0;
	meter->quiet_until_ns = now_ns + patience_ns(what) + WORK_NS;
	meter->quiet_is_long = estimate_of(what).varies || meter_is_mixed(meter, now_ns);
	return true;
}

static void end(struct meter *meter, uint64_t now_ns)
{
	ask(meter, 0);
	/* Others are first the next time. */
	meter->quiet_next_ns = now_ns + (now_ns - meter->quiet_since_ns) * PAUSE_TIMES * 3 / 2;
	if (now_ns < meter->quiet_until_ns)
		meter->quiet_until_ns = now_ns;
}

bool quiet_is_reached(struct meter *meter, uint64_t what, uint64_t now_ns)
{
	if (now_ns - meter->quiet_since_ns < NOTICED_NS)
		return false;
	const uint64_t others_ns = neighbours_quiet_until_ns(meter->card, now_ns);
	/* Of two who ask at once the later one goes on without. */
	const bool is_second = others_ns > now_ns && others_ns <= meter->quiet_until_ns;
	const bool is_quiet =
		!is_second && neighbours_out_until_ns(meter->card, now_ns, true) <= now_ns;

	if (!is_quiet && !is_second && now_ns - meter->quiet_since_ns < patience_ns(what))
		return false;
	if (is_quiet) {
		const uint64_t longest_ns = estimate_of(what).longest_ns;

		meter->quiet_from_ns = now_ns;
		meter->quiet_until_ns = now_ns + WORK_NS;
		meter->quiet_last_ns = now_ns + (longest_ns < WORK_NS ? WORK_NS - longest_ns : 0);
		ask(meter, meter->quiet_until_ns);
	} else {
		end(meter, now_ns);
	}
	return true;
}

bool quiet_lasts(const struct meter *meter, uint64_t now_ns)
{
	return meter->is_quiet && meter->quiet_from_ns && now_ns <= meter->quiet_last_ns;
}

uint64_t quiet_since_ns(const struct meter *meter, uint64_t from_ns, uint64_t to_ns)
{
	/* The bucket in which it began holds what others did just before. */
	const uint64_t next_ns = (meter->quiet_from_ns / ACTIVITY_SHORT_NS + 1) * ACTIVITY_SHORT_NS;

	if (!meter->quiet_from_ns || from_ns < meter->quiet_from_ns ||
	    to_ns > meter->quiet_until_ns)
		return 0;
	if (from_ns > next_ns)
		return from_ns;
	return to_ns < next_ns ? to_ns : next_ns;
}

void quiet_pass(struct meter *meter, uint64_t now_ns)
{
	if (meter->is_quiet && !(meter->quiet_is_long && quiet_lasts(meter, now_ns)) &&
	    !meter->count)
		end(meter, now_ns);
}
