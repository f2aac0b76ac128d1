/*
 * Work is charged by spans: from when the card had the first launch, or from the end of what is
 * charged already, to the event behind the last; less what that event costs. The card may have
 * waited for the host until the last launch was out, so a span is charged no more than its kinds
 * take by themselves, and no less than what is left behind that launch. What a span is charged less
 * than known the next may be charged more. A process is alone on the card while it has the lease;
 * beside slices that take none, and beside other contexts of its own, it is charged its part of the
 * turns.
 *
 * Ends are times of our clock: the reference's, and what the card says lies between the two
 * events. An end is no earlier than its event was set and no later than it is seen, which keeps the
 * two clocks together.
 */
#include "compute/compute.h"

#include "books/slice_region.h"
#include "slice/slice.h"

/* Less than known so far, and to be made up for. */
#define SLACK_MOST_NS 20000000u

/* Took more than twice what is known, and this: has the kind become longer? */
#define LONGER_NS 100000u
enum { LONGER_TIMES = 2 };

/* Beyond what is known, a span so long may have turns of others in it, of 1 to 2 ms. */
#define TURN_NS 900000u
#define WHOLE_MOST_NS 2500000u

/*
 * While what is out and not measured takes as long as it may, the slice earns its share: 90 % may
 * have ten times as much out as nearly nothing, and either has had a second too much then.
 */
#define EXCESS_NS 900000000ull
#define LATE_NS 1000000u
enum { LATE_TIMES = 4 };
/* What is first may wait for what the program does next: a launch more for each second. */
#define PATIENCE_NS 1000000000u

static uint64_t less(uint64_t from, uint64_t by)
{
	return from > by ? from - by : 0;
}

/* Right behind a kernel an event takes 2.0 us on an H100, and 1.3 by itself. */
static uint64_t gap_ns(const struct meter *meter)
{
	return meter->event_ns + meter->event_ns * 7 / 13;
}

/* Others that the card goes round to while this work is on it. */
static unsigned beside(const struct meter *meter, uint64_t now_ns)
{
	unsigned count = lease_beside(meter->card, now_ns);

	for (const struct meter *other = events_first(meter->card); other; other = other->next)
		count += other != meter && !charge_is_idle(other);
	return count;
}

static uint64_t sum(uint64_t number, int64_t more)
{
	return more < 0 ? less(number, (uint64_t)-more) : number + (uint64_t)more;
}

void charge_out(struct meter *meter, int64_t mean_ns, int64_t copies_ns, int64_t worst_ns)
{
	credit_put_out(meter->card, mean_ns - copies_ns, copies_ns);
	meter->out_ns = sum(meter->out_ns, mean_ns);
	meter->copies_ns = sum(meter->copies_ns, copies_ns);
	meter->worst_ns = sum(meter->worst_ns, worst_ns);
}

/* Copies alone: others' turns do not delay them, and what the bus was shared for is not charged. */
static uint64_t charge_copies(struct meter *meter, const struct work *work, uint64_t passed_ns,
			      bool is_by_itself)
{
	if (work->is_sample && is_by_itself)
		estimate_copy_sample(meter, work->what, passed_ns);
	return work->is_sure ? smaller(passed_ns, work->mean_ns) : passed_ns;
}

/* The next may be charged what is known and was not charged now. */
static void settle_slack(struct meter *meter, const struct work *work, uint64_t charged_ns)
{
	const uint64_t known_ns = work->is_sure ? work->mean_ns : 0;

	meter->slack_ns = smaller(less(meter->slack_ns + known_ns, charged_ns), SLACK_MOST_NS);
}

/* `host_ns`: the card can have waited for the host, until the last launch was out. */
static uint64_t charge_known(struct meter *meter, const struct work *work, uint64_t part_ns,
			     uint64_t host_ns, bool is_timed)
{
	/* Launched more slowly than the card could do them: then none was behind another. */
	const bool is_slow = host_ns * 4 >= part_ns * 3;

	/* What kernels of several streams take by themselves does not add up. */
	if (meter->is_mixed && !meter->aside_ns && !is_slow)
		return part_ns;
	const uint64_t gaps_ns = is_slow ? 0 : (work->launches - 1) * gap_ns(meter);
	const uint64_t most_ns = work->mean_ns + gaps_ns + meter->slack_ns;
	const uint64_t least_ns = is_timed && !meter->is_mixed ? less(part_ns, host_ns) : 0;
	const uint64_t charged_ns = larger(least_ns, smaller(part_ns, most_ns));

	/* By our clock it may also be a thread that was not running. */
	if (less(part_ns, host_ns) > LONGER_TIMES * most_ns + LONGER_NS)
		estimate_doubt(meter, work->what, part_ns - charged_ns);
	/* That there may have been gaps is no reason to charge something else more. */
	settle_slack(meter, work, charged_ns);
	return charged_ns;
}

/*
 * What is the slice's own of a span beside others. Their turns last a millisecond and more: a span
 * that is hardly longer than known has none in it, and is its own. A longer one is divided, less
 * what was charged in full meanwhile: so all is divided where others always work, and nothing
 * where they hardly do.
 */
static uint64_t own_part(struct meter *meter, const struct work *work, uint64_t span_ns,
			 unsigned others)
{
	const uint64_t known_ns = work->is_sure ? work->mean_ns : 0;
	const uint64_t part_ns = span_ns / (1 + others);

	if (!others)
		return span_ns;
	if (span_ns <= known_ns + TURN_NS) {
		meter->whole_ns = smaller(meter->whole_ns + span_ns - part_ns, WHOLE_MOST_NS);
		return span_ns;
	}
	const uint64_t back_ns = smaller(meter->whole_ns, less(part_ns, known_ns));

	meter->whole_ns -= back_ns;
	return part_ns - back_ns;
}

/* What the card had work for, and all before is charged. */
struct span {
	uint64_t ns;
	uint64_t host_ns;  /* of it, until all was queued */
	bool is_timed;     /* by the card */
	bool is_by_itself; /* between two events in a row */
	bool is_at_most;   /* of a sample: it may have taken less */
};

static void charge(struct meter *meter, const struct work *work, const struct span *span,
		   uint64_t now_ns)
{
	const uint64_t part_ns = own_part(meter, work, span->ns, beside(meter, now_ns));
	uint64_t charged_ns = part_ns;

	if (work->launches && work->copies_ns == work->mean_ns) {
		charged_ns = charge_copies(meter, work, span->ns, span->is_by_itself);
	} else if (work->is_sample) {
		charged_ns = estimate_sample(meter, work->what, part_ns, span->is_at_most);
		settle_slack(meter, work, charged_ns);
	} else if (work->launches && work->is_sure) {
		charged_ns = charge_known(meter, work, part_ns, span->host_ns, span->is_timed);
	}
	charge_out(meter, -(int64_t)work->mean_ns, -(int64_t)work->copies_ns,
		   -(int64_t)work->worst_ns);
	credit_spend(meter->card, charged_ns, lease_is_free(meter->card, now_ns));
}

/*
 * Since when the card had what is in front of the event at `index`. On several streams also what
 * is in front of the events before it, which are not reached: it may be any of them that ran.
 */
static uint64_t had_since_ns(const struct meter *meter, uint32_t index)
{
	uint64_t since_ns = UINT64_MAX;

	for (uint32_t i = meter->is_mixed && !meter->aside_ns ? 0 : index; i <= index; i++)
		if (meter->events[i].work.launches)
			since_ns = smaller(since_ns, meter->events[i].work.begun_ns);
	return since_ns;
}

/* When the event was reached, by our clock. */
static uint64_t end_of(const struct meter *meter, const struct timed_event *event, bool is_timed,
		       int64_t later_ns, uint64_t now_ns)
{
	/* The first has nothing in front. */
	if (!meter->reference || event->work.is_anchor)
		return event->set_ns;
	if (!is_timed)
		return now_ns;
	/* No sooner than it was set, no later than it is seen. */
	return smaller(larger(sum(meter->reference_ns, later_ns), event->set_ns), now_ns);
}

/*
 * A sample takes the time between its two events, by the card's clock alone: less the second
 * event, and less what the card waited for the launch behind the first. The card gets a launch
 * sooner than an event, which takes time itself, was reached. If the second event did not wait
 * either, the kernel ended before it, nobody knows when.
 */
static void set_sampled(const struct meter *meter, const struct timed_event *event,
			int64_t later_ns, struct span *span)
{
	if (events_launches_wait()) {
		span->ns = event->work.ended_ns - event->work.begun_ns;
		return;
	}
	const uint64_t front_ns = meter->reference_ns;
	const uint64_t had_ns = larger(event->work.begun_ns, front_ns + meter->event_ns);
	const uint64_t behind_ns =
		less(sum(front_ns, later_ns) + meter->event_ns, had_ns + gap_ns(meter));
	const uint64_t most_ns = less(event->set_ns, had_ns);

	span->is_at_most = most_ns > behind_ns;
	span->ns = larger(larger(behind_ns, most_ns), 1);
}

/* `later_ns`: so long after the reference the event at `index` was reached, where `is_timed`. */
static void settle(struct meter *meter, uint32_t index, bool is_timed, int64_t later_ns,
		   uint64_t now_ns)
{
	const struct timed_event event = meter->events[index];
	const uint64_t since_ns = had_since_ns(meter, index);
	const uint64_t end_ns = end_of(meter, &event, is_timed, later_ns, now_ns);
	const bool is_by_itself = is_timed && meter->reference_number + 1 == event.number;

	if (event.work.is_blank && is_by_itself && later_ns > 0 &&
	    (!meter->event_ns || (uint64_t)later_ns < meter->event_ns))
		meter->event_ns = (uint64_t)later_ns;
	/* Behind other work the event in front takes its time. */
	const uint64_t from_ns = larger(since_ns, meter->covered_ns + gap_ns(meter));
	struct span span = {.ns = less(end_ns, from_ns),
			    .host_ns = less(is_timed ? event.set_ns : event.work.ended_ns, from_ns),
			    .is_timed = is_timed,
			    .is_by_itself = is_by_itself};

	if (event.work.is_sample && is_by_itself && !event.work.copies_ns)
		set_sampled(meter, &event, later_ns, &span);
	events_pass(meter, index, end_ns, now_ns);
	meter->covered_ns = larger(meter->covered_ns, end_ns);
	if (since_ns != UINT64_MAX)
		charge(meter, &event.work, &span, now_ns);
}

static void become_idle(struct meter *meter)
{
	meter->is_mixed = false;
	meter->aside_ns = meter->more_ns = 0;
}

/* What has no event behind it has ended. */
static void settle_tail(struct meter *meter, uint64_t end_ns, uint64_t now_ns)
{
	const struct work tail = meter->tail;

	const uint64_t from_ns = larger(tail.begun_ns, meter->covered_ns);
	const struct span span = {.ns = less(end_ns, from_ns),
				  .host_ns = less(tail.ended_ns, from_ns)};

	events_end_tail(meter);
	if (tail.launches)
		charge(meter, &tail, &span, now_ns);
	meter->covered_ns = larger(meter->covered_ns, end_ns);
	become_idle(meter);
}

void charge_rest(struct meter *meter, uint64_t now_ns)
{
	if (meter->is_mixed && meter->tail.launches && charge_is_over(meter, now_ns))
		settle_tail(meter, charge_over_ns(meter), now_ns);
}

/* A stream whose next event is not reached is not asked about the others; all streams are. */
static void poll(struct meter *meter, uint64_t now_ns)
{
	CUstream asked[METER_EVENTS];
	uint32_t count = 0, index = 0;

	while (index < meter->count) {
		const CUstream stream = meter->events[index].stream;
		bool is_timed;
		int64_t later_ns;

		if (find_stream(asked, count, stream) < count) {
			index++;
		} else if (!events_look(meter, index, &is_timed, &later_ns)) {
			asked[count++] = stream;
		} else {
			/* The first waits for the program, it seems, and holds nobody up. */
			if (index && less(now_ns, meter->first_ns) >= PATIENCE_NS)
				meter->aside_ns = meter->worst_ns;
			settle(meter, index, is_timed, later_ns, now_ns);
		}
	}
}

void charge_poll(struct meter *meter, uint64_t now_ns)
{
	if (meter->is_polled || !meter->count)
		return;
	meter->is_polled = true;
	meter->polled_ns = now_ns;
	poll(meter, now_ns);
	meter->is_polled = false;
	if (charge_is_idle(meter))
		become_idle(meter);
	lease_tell(meter, now_ns);
}

void charge_anchor(struct meter *meter, uint64_t now_ns)
{
	struct timed_event *first = &meter->events[0];

	charge_poll(meter, now_ns);
	if (meter->count && first->work.is_anchor) {
		first->work.is_anchor = false;
		first->set_ns = now_ns;
	}
}

void charge_all(struct meter *meter, uint64_t asked_ns, uint64_t now_ns)
{
	const uint32_t launches = meter->tail.launches;
	/* Nothing was left to wait for. */
	const uint64_t end_ns =
		now_ns - asked_ns < METER_GAP_NS ? smaller(now_ns, charge_over_ns(meter)) : now_ns;

	charge_poll(meter, now_ns);
	if (!meter->count && !meter->is_polled && meter->tail.launches == launches &&
	    !meter->tail.ahead) {
		settle_tail(meter, end_ns, now_ns);
		lease_tell(meter, now_ns);
	}
}

void charge_forget(struct meter *meter, uint64_t now_ns)
{
	credit_spend(meter->card, meter->out_ns, lease_is_free(meter->card, now_ns));
	charge_out(meter, -(int64_t)meter->out_ns, -(int64_t)meter->copies_ns, 0);
	lease_tell(meter, now_ns);
}

/* Only of a card with a cap. */
static uint64_t worst_most_ns(const struct meter *meter)
{
	const uint32_t percent = slice_limits()->cards[meter->card].core_percent;

	return EXCESS_NS * 100 / (percent < 100 ? 100 - percent : 1);
}

/* The first event took far longer than it should, and other streams do not pass it. */
static bool is_late(const struct meter *meter, uint64_t now_ns)
{
	const struct timed_event *first = &meter->events[0];
	const uint64_t since_ns = larger(first->set_ns, meter->first_ns);
	/* In front of an empty one anything that is out may be. */
	const uint64_t mean_ns = first->work.launches ? first->work.mean_ns : meter->out_ns;

	return less(now_ns, since_ns) > mean_ns * LATE_TIMES + LATE_NS;
}

bool charge_holds(struct meter *meter, uint64_t worst_ns, uint64_t now_ns)
{
	if (!meter->count ||
	    (less(meter->worst_ns, meter->aside_ns) + worst_ns <= worst_most_ns(meter) &&
	     (meter->aside_ns || !is_late(meter, now_ns))))
		return false;
	if (less(now_ns, meter->first_ns) < PATIENCE_NS ||
	    less(now_ns, meter->let_go_ns) < PATIENCE_NS)
		return true;
	meter->let_go_ns = now_ns;
	return false;
}
