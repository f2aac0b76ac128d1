/* Charging work as it ends, and telling the neighbours. Everything with the meter's lock. */
#include "compute/busy.h"

#include "books/slice_region.h"
#include "compute/backlog.h"
#include "compute/correction.h"
#include "compute/credit.h"
#include "compute/estimate.h"
#include "compute/events.h"
#include "compute/neighbours.h"
#include "compute/quiet.h"
#include "driver/stream.h"
#include "slice/slice.h"

/* How many others there are changes slowly, and counting them takes a while. */
#define COUNT_EVERY_NS 1000000u

/* Work of several kinds took so many times what it should, and a little: which was it? */
enum { SURPRISE_TIMES = 4, WARY_LAUNCHES = 64 };
#define SURPRISE_NS 1000000u

/* A kind's estimate changed so many times: what is queued of it changes too. */
enum { REPRICE_TIMES = 2 };

/* A neighbour that did nothing for so long does not want the card. */
#define ALONE_NS 50000000u

/* Several turns, of 1,024 us by default. */
#define GROWN_NS 8000000u
/* What is claimed and was not there yet counts later, up to so much. */
#define OWED_MOST_NS 20000000u

/* Behind longer ones there is always an event, and before them. */
#define SINGLE_NS 200000u

/* So long between two launches is worth an event. */
#define GAP_NS 5000u

/* Took more than twice what samples say, and a little: look again, but not always. */
#define DOUBT_NS 50000u
#define DOUBT_EVERY_NS 100000000u

/* Longer than neighbours' turns: what began so late waited for work of ours. */
#define DELAY_NS 20000000u

bool busy_is_alone(const struct meter *meter)
{
	return !neighbours_are_at_work(meter->card, ALONE_NS);
}

bool busy_is_free(const struct meter *meter)
{
	return slice_limits()->policy == POLICY_WORK_CONSERVING && busy_is_alone(meter);
}

/* How long what is launched will be there, beside as many others as of late. */
static uint64_t unfinished_there_ns(const struct meter *meter)
{
	const uint64_t work_ns = meter->queued_ns + meter->tail.work_ns;

	return work_ns + work_ns * meter->others / ACTIVITY_ONE;
}

void busy_publish(struct meter *meter, uint64_t now_ns)
{
	struct activity *page = activity_own_page(meter->card);

	if (!meter->is_running) {
		if (meter->told_until_ns)
			activity_set_open(page, (unsigned)meter->place, 0, 0);
		meter->told_until_ns = 0;
		return;
	}
	if (now_ns - meter->counted_ns >= COUNT_EVERY_NS) {
		meter->others = neighbours_parts(meter);
		meter->counted_ns = now_ns;
	}
	const uint64_t left_ns = unfinished_there_ns(meter);

	meter->told_until_ns = now_ns + left_ns + left_ns / 8;
	activity_set_open(page, (unsigned)meter->place, meter->cursor_ns, meter->told_until_ns);
}

void busy_extend(struct meter *meter, uint64_t now_ns)
{
	const uint64_t left_ns = unfinished_there_ns(meter);

	if (now_ns + left_ns > meter->told_until_ns)
		busy_publish(meter, now_ns);
}

static void tell(struct meter *meter, uint64_t from_ns, uint64_t to_ns, uint64_t claimed_ns)
{
	activity_add(activity_own_page(meter->card), from_ns, to_ns, claimed_ns);
	activity_add(&meter->mine, from_ns, to_ns, claimed_ns);
}

static void spend(const struct meter *meter, uint64_t part_ns)
{
	if (busy_is_free(meter))
		credit_spend_alone(meter->card, part_ns);
	else
		credit_spend(meter->card, (int64_t)part_ns);
}

/*
 * Work that was not measured: its estimate is card time, so with others on the
 * card it was there for longer than that.
 */
static void charge_estimate(struct meter *meter, uint64_t work_ns, uint64_t now_ns)
{
	uint64_t to_ns = meter->cursor_ns + neighbours_duration(meter, meter->cursor_ns, work_ns);

	if (to_ns > now_ns)
		to_ns = now_ns;
	tell(meter, meter->cursor_ns, to_ns, work_ns);
	spend(meter, work_ns);
	meter->cursor_ns = to_ns;
}

/*
 * The busy period that the first event ends, on our clock. The clock's place of it
 * is known to within two moments: not reached at the one, reached at the other.
 */
static void place_period(const struct meter *meter, uint64_t took_ns, uint64_t now_ns,
			 uint64_t *from_ns, uint64_t *to_ns)
{
	*from_ns = meter->reference_ns;
	*to_ns = *from_ns + took_ns;
	if (*to_ns < meter->unfinished_ns)
		*to_ns = meter->unfinished_ns;
	if (*to_ns > now_ns)
		*to_ns = now_ns;
	/* Else it began behind what was taken to have ended long before: all of it was ours. */
	if (!meter->has_unmeasured || *to_ns - *from_ns <= took_ns + DELAY_NS)
		*from_ns = *to_ns > took_ns ? *to_ns - took_ns : 0;
	if (*from_ns < meter->cursor_ns)
		*from_ns = meter->cursor_ns;
}

static void reprice(struct meter *meter, uint64_t what, uint64_t before_ns)
{
	const uint64_t each_ns = estimate_of(what).work_ns;

	if (each_ns / REPRICE_TIMES >= before_ns || before_ns / REPRICE_TIMES >= each_ns)
		credit_add_inflight(meter->card, events_reprice(meter, what, each_ns));
}

/* The first event's work took `part_ns`. */
static void learn(struct meter *meter, const struct timed_event *timed, uint64_t part_ns)
{
	const struct work *work = &timed->work;
	const uint64_t before_ns = estimate_of(work->what).work_ns;

	if (!work->is_alike) {
		if (part_ns > work->work_ns * SURPRISE_TIMES + SURPRISE_NS)
			meter->wary = WARY_LAUNCHES;
		return;
	}
	if (part_ns <= timed->known_ns)
		return;
	const uint32_t launches = timed->known_ns ? 1 : work->launches;

	estimate_learn(work->what, (part_ns - timed->known_ns) / launches, launches);
	reprice(meter, work->what, before_ns);
}

/* Without neighbours, the first event's work took `part_ns`. */
static void learn_solo(const struct meter *meter, const struct timed_event *timed, uint64_t part_ns,
		       uint64_t now_ns, bool is_asked)
{
	const struct work *work = &timed->work;
	const bool is_single = work->launches == 1 && !meter_is_mixed(meter, now_ns) &&
			       (meter->has_lead || work->work_ns >= SINGLE_NS);

	if (work->launches <= METER_KINDS)
		estimate_learn_solo(work->whats, work->launches, part_ns,
				    is_asked || busy_is_alone(meter), is_single, now_ns);
}

/*
 * Beside neighbours what passes holds their turns: what the launches take by themselves is
 * claimed, at most what passed, and the rest of it later.
 */
static uint64_t claim(struct meter *meter, const struct work *work, uint64_t there_ns)
{
	const uint64_t wanted_ns = meter->owed_ns + work->solo_ns;
	const uint64_t claimed_ns = wanted_ns < there_ns ? wanted_ns : there_ns;

	meter->owed_ns = wanted_ns - claimed_ns;
	if (meter->owed_ns > OWED_MOST_NS)
		meter->owed_ns = OWED_MOST_NS;
	return claimed_ns;
}

struct charge {
	uint64_t part_ns;    /* ours */
	uint64_t claimed_ns; /* of neighbours */
	bool is_sure;
};

static struct charge charge_beside(struct meter *meter, const struct timed_event *timed,
				   uint64_t from_ns, uint64_t to_ns)
{
	const struct work *work = &timed->work;
	const uint64_t there_ns = to_ns - from_ns;

	if (work->is_alike && !timed->known_ns && work->launches)
		estimate_note_passed(work->what, there_ns / work->launches);
	/* So much longer than known is nobody's turn: its kernels take longer than they used to. */
	const bool is_grown = there_ns > work->solo_ns + GROWN_NS;

	if (work->solo_ns < ESTIMATE_UNKNOWN_NS && !is_grown) {
		const uint64_t claimed_ns = claim(meter, work, there_ns);

		return (struct charge){claimed_ns, claimed_ns, true};
	}
	const uint64_t least_ns = is_grown || !work->is_alike
					  ? ESTIMATE_UNKNOWN_NS
					  : estimate_of(work->what).least_ns * work->launches;

	return (struct charge){neighbours_our_part(meter, from_ns, to_ns),
			       least_ns < there_ns ? least_ns : there_ns, false};
}

/* It may be gaps, or its kinds take longer than they did. */
static void doubt_samples(struct meter *meter, const struct work *work, uint64_t there_ns,
			  uint64_t now_ns)
{
	if (there_ns <= 2 * work->sampled_ns + DOUBT_NS ||
	    now_ns - meter->doubted_ns < DOUBT_EVERY_NS)
		return;
	meter->doubted_ns = now_ns;
	const uint32_t kinds = work->is_alike ? 1 : work->launches;

	for (uint32_t i = 0; i < kinds && i < METER_KINDS; i++)
		estimate_doubt_sample(work->whats[i]);
}

static void charge_measured(struct meter *meter, const struct timed_event *timed, uint64_t took_ns,
			    uint64_t now_ns)
{
	uint64_t from_ns, to_ns;

	place_period(meter, took_ns, now_ns, &from_ns, &to_ns);
	const uint64_t there_ns = to_ns > from_ns ? to_ns - from_ns : 0;
	const uint64_t quiet_from_ns = quiet_since_ns(meter, from_ns, to_ns);
	const bool is_alone =
		neighbours_were_away(meter, quiet_from_ns ? quiet_from_ns : from_ns, to_ns);
	const bool is_asked = is_alone && quiet_from_ns;
	const uint64_t sampled_ns = timed->work.sampled_ns;
	struct charge charge = {there_ns, there_ns, true};

	if (timed->work.launches == 1 && meter->has_lead && !meter_is_mixed(meter, now_ns))
		estimate_sample(timed->work.what, took_ns);
	/* What is longer than samples say was no kernel. */
	if (is_alone && sampled_ns < there_ns) {
		charge.part_ns = charge.claimed_ns = sampled_ns;
		doubt_samples(meter, &timed->work, there_ns, now_ns);
	} else if (!is_alone)
		charge = charge_beside(meter, timed, from_ns, to_ns);
	if (there_ns) {
		tell(meter, from_ns, to_ns, charge.claimed_ns);
		if (!is_alone || sampled_ns >= there_ns)
			correction_note(meter, from_ns, to_ns, charge.part_ns, charge.is_sure);
		spend(meter, charge.part_ns);
	}
	/* Who has no cap does not tell before it has seen that we do. */
	if (is_alone && now_ns - meter->begun_ns >= ALONE_NS)
		learn_solo(meter, timed, sampled_ns < took_ns ? sampled_ns : took_ns, now_ns,
			   is_asked);
	/* What the busy period was longer than this work is not its. */
	if (there_ns)
		learn(meter, timed,
		      there_ns > took_ns ? (uint64_t)((double)charge.part_ns * (double)took_ns /
						      (double)there_ns)
					 : charge.part_ns);
	if (to_ns > meter->cursor_ns)
		meter->cursor_ns = to_ns;
}

/* A copy, or nothing: look for more of them, of launches that are short too. */
static void pass_gap(struct meter *meter, uint64_t took_ns, uint64_t now_ns)
{
	uint64_t from_ns, to_ns;

	place_period(meter, took_ns, now_ns, &from_ns, &to_ns);
	meter->cursor_ns = to_ns > meter->cursor_ns ? to_ns : meter->cursor_ns;
	if (took_ns >= GAP_NS)
		meter->wary = WARY_LAUNCHES;
}

/* The first event has been reached: charge the busy period up to it. */
static void settle_event(struct meter *meter, uint64_t now_ns)
{
	const struct timed_event *timed = meter_first(meter);
	uint64_t took_ns;
	const bool is_known = events_took(meter, &took_ns);

	if (!timed->work.launches)
		pass_gap(meter, is_known ? took_ns : 0, now_ns);
	else if (is_known)
		charge_measured(meter, timed, took_ns, now_ns);
	else
		charge_estimate(meter, timed->work.work_ns, now_ns);
	credit_add_inflight(meter->card, -(int64_t)timed->work.work_ns);
	events_pass(meter, meter->cursor_ns);
	quiet_pass(meter, now_ns);
	meter->progress_ns = meter->first_ns = now_ns;
	meter->aside_ns = 0;
	meter->has_unmeasured = false;
}

void busy_overtake(struct meter *meter, uint64_t now_ns)
{
	const CUstreamCaptureMode mode = capture_exempt();
	struct timed_event gone;

	while (events_overtake(meter, &gone)) {
		charge_estimate(meter, gone.work.work_ns, now_ns);
		credit_add_inflight(meter->card, -(int64_t)gone.work.work_ns);
		/* The first may wait for the program itself: others go on while theirs ends. */
		meter->progress_ns = now_ns;
		backlog_set_aside(meter, now_ns);
	}
	capture_restore(mode);
}

/* Short work behind the last event: charged as estimated. */
static void settle_tail(struct meter *meter, uint64_t now_ns)
{
	charge_estimate(meter, meter->tail.work_ns, now_ns);
	credit_add_inflight(meter->card, -(int64_t)meter->tail.work_ns);
	meter->tail = (struct work){0};
}

/* Work behind the last event begins when that is reached. */
static uint64_t tail_from_ns(const struct meter *meter)
{
	return meter->launched_ns > meter->cursor_ns ? meter->launched_ns : meter->cursor_ns;
}

void busy_poll(struct meter *meter, uint64_t now_ns, bool is_waited_for)
{
	if (!meter->is_running)
		return;
	credit_earn(meter->card, true, now_ns);
	if (meter_first(meter)) {
		const CUstreamCaptureMode mode = capture_exempt();

		while (meter_first(meter) && events_is_reached(meter))
			settle_event(meter, now_ns);
		capture_restore(mode);
	}
	if (meter_first(meter)) {
		meter->unfinished_ns = now_ns;
	} else if (!meter->tail.launches || is_waited_for ||
		   now_ns > tail_from_ns(meter) + meter->tail.work_ns * 2 + BUSY_GAP_NS) {
		if (meter->tail.launches) {
			meter->has_unmeasured = meter->has_unmeasured || !is_waited_for;
			settle_tail(meter, now_ns);
		}
		meter->is_running = false;
	}
	/* What nobody else wants was not charged. */
	if (!busy_is_free(meter))
		correction_run(meter, now_ns);
	meter->polled_ns = now_ns;
	busy_publish(meter, now_ns);
}
