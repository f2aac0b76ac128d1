/*
 * A launch is estimated by what its like took so far, and that may be wrong by
 * any factor. So what is queued and not yet measured is also counted at the
 * longest that it may take. While all of that runs, the slice earns its share of
 * the time, so a slice of 90 % may queue ten times as much as one of nearly
 * nothing: either has had a second too much when all of it does take so long,
 * and is still for as long as it takes to earn that.
 *
 * Only an event that was reached makes any of it certain, and only of its own stream.
 */
#include "compute/backlog.h"

#include "slice/slice.h"

/* A second, less what the longest of them may take longer than that. */
#define EXCESS_NS 900000000ull
/* So much of it, and an event follows: one is soon measured, whatever the rest does. */
#define EVENT_FROM_NS (EXCESS_NS / 2)

/* The first event is late when it took four times as long as it should, and a little. */
#define LATE_NS 1000000u
enum { LATE_TIMES = 4 };

#define NAP_LEAST_NS 50000u
#define NAP_MOST_NS 1000000u
enum { NAP_PART = 8 };

/*
 * What is queued may itself wait, for what the program would do next: so many
 * seconds of standstill, so many launches more. If another stream's end is seen then, it is
 * counted no more until the first event is.
 */
#define PATIENCE_NS 1000000000u

/* When the first event should be reached, after the one before it was. */
static uint64_t first_due_ns(const struct meter *meter)
{
	const uint64_t work_ns = meter_first(meter)->work.work_ns;

	return work_ns + work_ns * meter->others / ACTIVITY_ONE;
}

/* Only of a card with a cap; without one nothing is held. */
static uint64_t most_ns(const struct meter *meter)
{
	const uint32_t percent = slice_limits()->cards[meter->card].core_percent;

	return EXCESS_NS * 100 / (percent < 100 ? 100 - percent : 1);
}

bool backlog_is_late(const struct meter *meter, uint64_t now_ns)
{
	const struct timed_event *first = meter_first(meter);

	return first && first->work.launches &&
	       now_ns - meter->progress_ns > first_due_ns(meter) * LATE_TIMES + LATE_NS;
}

bool backlog_stands_still(const struct meter *meter, uint64_t now_ns)
{
	return now_ns - meter->progress_ns >= PATIENCE_NS;
}

bool backlog_holds(const struct meter *meter, uint64_t worst_ns, uint64_t now_ns)
{
	if (!meter_first(meter))
		return false;
	const uint64_t aside_ns =
		meter->aside_ns < meter->worst_ns ? meter->aside_ns : meter->worst_ns;

	return meter->worst_ns - aside_ns + worst_ns > most_ns(meter) ||
	       backlog_is_late(meter, now_ns);
}

void backlog_set_aside(struct meter *meter, uint64_t now_ns)
{
	if (now_ns - meter->first_ns >= PATIENCE_NS)
		meter->aside_ns = meter->worst_ns;
}

uint64_t backlog_nap_ns(struct meter *meter, uint64_t now_ns)
{
	const uint64_t passed_ns = now_ns - meter->progress_ns;
	/* Neighbours may have left: then it is reached as soon as that. */
	const uint64_t due_ns = meter_first(meter) ? meter_first(meter)->work.work_ns : 0;
	uint64_t nap_ns = passed_ns < due_ns ? (due_ns - passed_ns) / 2 : passed_ns / NAP_PART;

	if (backlog_stands_still(meter, now_ns) && now_ns - meter->let_go_ns >= PATIENCE_NS) {
		meter->let_go_ns = now_ns;
		return 0;
	}
	if (nap_ns < NAP_LEAST_NS)
		nap_ns = NAP_LEAST_NS;
	return nap_ns < NAP_MOST_NS ? nap_ns : NAP_MOST_NS;
}

/* Many streams share few places, and then each other's events. */
static struct untimed *place_of(struct meter *meter, CUstream stream)
{
	return &meter->untimed[((uint64_t)(uintptr_t)stream * 0x9E3779B97F4A7C15ull) >> 61];
}

void backlog_add(struct meter *meter, CUstream stream, uint64_t worst_ns, uint64_t now_ns)
{
	struct untimed *place = place_of(meter, stream);

	place->worst_ns += worst_ns;
	place->launched_ns = now_ns;
	meter->untimed_ns += worst_ns;
	meter->worst_ns += worst_ns;
}

void backlog_end(struct meter *meter, uint64_t worst_ns)
{
	meter->worst_ns -= worst_ns;
}

static uint64_t take(struct meter *meter, struct untimed *place, uint64_t worst_ns)
{
	const uint64_t taken_ns = worst_ns < place->worst_ns ? worst_ns : place->worst_ns;

	place->worst_ns -= taken_ns;
	meter->untimed_ns -= taken_ns;
	return taken_ns;
}

/* Another thread's event may have it already. */
void backlog_withdraw(struct meter *meter, CUstream stream, uint64_t worst_ns)
{
	backlog_end(meter, take(meter, place_of(meter, stream), worst_ns));
}

uint64_t backlog_behind_event(struct meter *meter, CUstream stream)
{
	return take(meter, place_of(meter, stream), UINT64_MAX);
}

bool backlog_wants_event(struct meter *meter, CUstream stream, uint64_t now_ns)
{
	if (meter->untimed_ns < EVENT_FROM_NS)
		return false;
	/* What has no event for so long can hardly run any more: its stream may be gone. */
	for (unsigned i = 0; i < METER_STREAMS; i++) {
		struct untimed *place = &meter->untimed[i];

		if (place != place_of(meter, stream) &&
		    now_ns - place->launched_ns > 2 * most_ns(meter))
			backlog_end(meter, take(meter, place, UINT64_MAX));
	}
	return meter->untimed_ns >= EVENT_FROM_NS;
}
