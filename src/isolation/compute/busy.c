/* Charging work as it ends, and telling the neighbours. Everything with the meter's lock. */
#include "compute/busy.h"

#include "books/slice_region.h"
#include "compute/correction.h"
#include "compute/credit.h"
#include "compute/estimate.h"
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

/* Half a turn, which is 1,024 us by default, and may be set longer. */
#define SHORT_NS 500000u
#define LONG_NS (8ull * SHORT_NS)
#define LONG_IN_QUIET_NS (24ull * SHORT_NS)
#define GROWN_NS (16ull * SHORT_NS)

/* So long between two launches is worth an event. */
#define GAP_NS 5000u

/* Longer than neighbours' turns: what began so late waited for work of ours. */
#define DELAY_NS 20000000u

bool busy_may_share(void)
{
	return slice_limits()->policy == POLICY_WORK_CONSERVING;
}

bool busy_is_alone(const struct meter *meter)
{
	return !neighbours_are_at_work(meter->card, ALONE_NS);
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
		meter->others = neighbours_parts(meter->card, meter->place, &meter->mine);
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
	if (busy_may_share() && busy_is_alone(meter))
		credit_spend_alone(meter->card, part_ns);
	else
		credit_spend(meter->card, part_ns);
}

/*
 * Work that was not measured: its estimate is card time, so with others on the
 * card it was there for longer than that.
 */
static void charge_estimate(struct meter *meter, uint64_t work_ns, uint64_t now_ns)
{
	const uint64_t there_ns = neighbours_duration(meter->card, meter->cursor_ns, work_ns,
						      meter->place, &meter->mine);
	uint64_t to_ns = meter->cursor_ns + there_ns;

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
static void place_stretch(const struct meter *meter, uint64_t took_ns, uint64_t now_ns,
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
		credit_add_inflight(meter->card, slice_slot(),
				    events_reprice(meter, what, each_ns));
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

/*
 * What of a busy period can be ours at most, as far as we know: what its launches take
 * without neighbours. Not of several streams, whose kernels run beside each other.
 */
static uint64_t claim(const struct meter *meter, const struct timed_event *timed, uint64_t took_ns,
		      uint64_t there_ns, uint64_t now_ns)
{
	const struct work *work = &timed->work;
	uint64_t solo_ns = work->solo_ns;

	if (now_ns - meter->mixed_ns < BUSY_MIXED_NS)
		return there_ns;
	if (work->is_alike && !timed->known_ns && work->launches) {
		if (work->launches == 1 && meter->has_lead)
			estimate_sample(work->what, took_ns);
		estimate_learn_solo(work->what, took_ns / work->launches, meter->is_quiet, now_ns);
		solo_ns = estimate_of(work->what).solo_ns * work->launches;
	}
	return solo_ns < there_ns ? solo_ns : there_ns;
}

/* So much longer than known is nobody's turn: its kernels take longer than they used to. */
static bool has_grown(uint64_t claimed_ns, uint64_t there_ns)
{
	return there_ns > claimed_ns + GROWN_NS;
}

/*
 * Kernels much shorter than a turn are known exactly, since most of them lie within one;
 * somewhat longer ones where some of late had to wait and others had not (compute/quiet.c).
 * Else each may hold others' turns, always the same.
 */
static bool is_exact(const struct timed_event *timed, uint64_t claimed_ns, uint64_t there_ns)
{
	const uint64_t each_ns = claimed_ns / timed->work.launches;
	const struct estimate estimate = estimate_of(timed->work.what);

	if (has_grown(claimed_ns, there_ns))
		return false;
	return each_ns < SHORT_NS ||
	       (each_ns < (estimate.was_quiet ? LONG_IN_QUIET_NS : LONG_NS) && estimate.has_waited);
}

static void charge_measured(struct meter *meter, const struct timed_event *timed, uint64_t took_ns,
			    uint64_t now_ns)
{
	uint64_t from_ns, to_ns;

	place_stretch(meter, took_ns, now_ns, &from_ns, &to_ns);
	if (to_ns <= from_ns)
		return;
	const uint64_t there_ns = to_ns - from_ns;
	const uint64_t claimed_ns = claim(meter, timed, took_ns, there_ns, now_ns);
	const bool is_sure = is_exact(timed, claimed_ns, there_ns);
	const uint64_t part_ns = is_sure ? claimed_ns
					 : neighbours_our_part(meter->card, from_ns, to_ns,
							       meter->place, &meter->mine);

	tell(meter, from_ns, to_ns, has_grown(claimed_ns, there_ns) ? there_ns : claimed_ns);
	/* What is longer than samples say was no kernel: nobody's time may be left over to us. */
	if (!is_sure || !timed->work.is_sampled)
		correction_note(meter, from_ns, to_ns, part_ns, is_sure);
	spend(meter, part_ns);
	/* What the busy period was longer than this work is not its. */
	learn(meter, timed,
	      there_ns > took_ns ? (uint64_t)((double)part_ns * (double)took_ns / (double)there_ns)
				 : part_ns);
	meter->cursor_ns = to_ns;
}

/* A copy, or nothing: look for more of them, of launches that are short too. */
static void pass_gap(struct meter *meter, uint64_t took_ns, uint64_t now_ns)
{
	uint64_t from_ns, to_ns;

	place_stretch(meter, took_ns, now_ns, &from_ns, &to_ns);
	meter->cursor_ns = to_ns > meter->cursor_ns ? to_ns : meter->cursor_ns;
	if (took_ns >= GAP_NS)
		meter->wary = WARY_LAUNCHES;
}

/* The first event has been reached: charge the busy period up to it. */
static void settle_mark(struct meter *meter, uint64_t now_ns)
{
	const struct timed_event *timed = events_first(meter);
	uint64_t took_ns;
	const bool is_known = events_took(meter, &took_ns);

	if (!timed->work.launches)
		pass_gap(meter, is_known ? took_ns : 0, now_ns);
	else if (is_known)
		charge_measured(meter, timed, took_ns, now_ns);
	else
		charge_estimate(meter, timed->work.work_ns, now_ns);
	credit_add_inflight(meter->card, slice_slot(), -(int64_t)timed->work.work_ns);
	events_pass(meter, meter->cursor_ns);
	quiet_end(meter);
	meter->progress_ns = now_ns;
	meter->has_unmeasured = false;
}

void busy_overtake(struct meter *meter, uint64_t now_ns)
{
	const CUstreamCaptureMode mode = capture_exempt();
	struct timed_event gone;

	while (events_overtake(meter, &gone)) {
		charge_estimate(meter, gone.work.work_ns, now_ns);
		credit_add_inflight(meter->card, slice_slot(), -(int64_t)gone.work.work_ns);
		/* The first may wait for the program itself: others go on while theirs ends. */
		meter->progress_ns = now_ns;
	}
	capture_restore(mode);
}

/* Short work behind the last event: charged as estimated. */
static void settle_tail(struct meter *meter, uint64_t now_ns)
{
	charge_estimate(meter, meter->tail.work_ns, now_ns);
	credit_add_inflight(meter->card, slice_slot(), -(int64_t)meter->tail.work_ns);
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
	if (events_first(meter)) {
		const CUstreamCaptureMode mode = capture_exempt();

		while (events_first(meter) && events_is_reached(meter))
			settle_mark(meter, now_ns);
		capture_restore(mode);
	}
	if (events_first(meter)) {
		meter->unfinished_ns = now_ns;
	} else if (!meter->tail.launches || is_waited_for ||
		   now_ns > tail_from_ns(meter) + meter->tail.work_ns * 2 + BUSY_GAP_NS) {
		if (meter->tail.launches) {
			meter->has_unmeasured = meter->has_unmeasured || !is_waited_for;
			settle_tail(meter, now_ns);
		}
		meter->is_running = false;
	}
	/* A slice that may have what nobody else wants was not charged for all of it. */
	if (!busy_may_share())
		correction_run(meter, now_ns);
	meter->polled_ns = now_ns;
	busy_publish(meter, now_ns);
}
