/*
 * Work is charged by segments: what lies between two events. A segment is charged the time that
 * passed, less what the events cost and less the time in which the card was known to have nothing
 * of ours; and no more than the kinds of its launches take by themselves where these are known,
 * since the host may have been slower than the card. What a segment took less than known the next
 * may take more. The slice is alone on the card while it has the lease; beside slices that take
 * none, and beside other processes of its own, it is charged its part of the turns.
 */
#include "compute/compute.h"

#include "books/slice_region.h"
#include "slice/slice.h"

/* Less than known so far, and to be made up for. */
#define SLACK_MOST_NS 20000000u

/* Took more than twice what is known, and this: have the kinds become longer? Sample the next. */
#define LONGER_NS 100000u
/* So much more is no thread that was late. */
#define SURE_NS 20000000u
enum { LONGER_TIMES = 2, WARY_LAUNCHES = 8 };

/* Hardly anything is out. */
#define FEW_NS 1000000u

/* Since the last launch, beyond what was out: the card had likely nothing of ours. */
#define GAP_NS 20000u

/* A sample so long has turns of others in it. */
#define TURN_NS 500000u

/*
 * While what is out and not measured takes as long as it may, the slice earns its share: 90 % may
 * have ten times as much out as nearly nothing, and either has had a second too much then.
 */
#define EXCESS_NS 900000000ull
#define LATE_NS 1000000u
enum { LATE_TIMES = 4 };
/* What is first may wait for what the program does next: a launch more for each second. */
#define PATIENCE_NS 1000000000u

/* Streams that one look asks about. */
enum { STREAMS_LOOKED_AT = 4 };

static uint64_t less(uint64_t from, uint64_t by)
{
	return from > by ? from - by : 0;
}

/* Right behind a kernel, on an H100: 2.0 us, and 1.4 behind another event. */
uint64_t charge_gap_ns(const struct meter *meter)
{
	return meter->event_ns + meter->event_ns / 2;
}

/* Others that the card goes round to while this work is on it. */
static unsigned beside(const struct meter *meter, uint64_t now_ns)
{
	const struct region *region = slice_region();
	unsigned count = lease_beside(meter->card, now_ns);

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++)
		count += (int)i != slice_slot() &&
			 atomic_load_explicit(&region->cards[meter->card].inflight_ns[i],
					      memory_order_relaxed) > 0;
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

static uint64_t charge_sample(struct meter *meter, const struct work *work, uint64_t took_ns,
			      unsigned others)
{
	if (others && took_ns > TURN_NS)
		took_ns /= 1 + others;
	meter->slack_ns = smaller(less(meter->slack_ns + work->mean_ns, took_ns), SLACK_MOST_NS);
	estimate_sample(meter, work->what, took_ns);
	return took_ns;
}

/* Were they launched more slowly than the card could do them? Then none was behind another. */
static bool is_host_bound(const struct meter *meter, const struct work *work, uint64_t part_ns)
{
	return (work->ended_ns - work->begun_ns) * 4 >= part_ns * 3 && meter->out_ns < FEW_NS;
}

static uint64_t charge_known(struct meter *meter, const struct work *work, uint64_t part_ns,
			     bool is_timed)
{
	const bool is_slow = is_host_bound(meter, work, part_ns);

	/* What kernels of several streams take by themselves does not add up. */
	if (meter->is_mixed && !meter->aside_ns && !is_slow)
		return part_ns;
	const uint64_t most_ns = work->mean_ns + (is_slow ? 0 : work->gaps_ns) + meter->slack_ns;
	/* The card can have waited for the host only until the last launch was out, and in no
	 * queue. */
	const uint64_t host_ns =
		work->ahead_ns >= FEW_NS
			? 0
			: work->ended_ns - work->begun_ns + work->pause_ns + work->waited_ns;
	const uint64_t least_ns = meter->is_mixed ? 0 : less(part_ns, host_ns);
	/* By our clock it may also be a thread that was not running. */
	const bool is_sure =
		(is_timed && !work->is_from_idle) || least_ns > LONGER_TIMES * most_ns + SURE_NS;
	const uint64_t charged_ns = larger(is_sure ? least_ns : 0, smaller(part_ns, most_ns));

	/* That there may have been gaps is no reason to charge something else more. */
	meter->slack_ns = smaller(less(meter->slack_ns + work->mean_ns, charged_ns), SLACK_MOST_NS);
	if (less(part_ns, work->pause_ns) > LONGER_TIMES * most_ns + LONGER_NS)
		meter->wary = WARY_LAUNCHES;
	return charged_ns;
}

/* `passed_ns`: without the idle time of the segment; `is_by_itself`: since the event before it. */
static void charge(struct meter *meter, const struct work *work, uint64_t passed_ns, bool is_timed,
		   bool is_by_itself, uint64_t now_ns)
{
	uint64_t charged_ns;

	/* Up to an event with nothing before it only other streams can have had work. */
	if (!work->launches && (!meter->is_mixed || work->is_from_idle || meter->aside_ns))
		return;
	const unsigned others = beside(meter, now_ns);
	/* On several streams our clock alone knows when nothing was out. */
	const uint64_t there_ns = meter->is_mixed ? less(passed_ns, work->pause_ns) : passed_ns;
	const uint64_t part_ns = there_ns / (1 + others);

	if (work->launches && work->copies_ns == work->mean_ns)
		charged_ns = charge_copies(meter, work, there_ns, is_by_itself);
	else if (work->is_sample)
		charged_ns = charge_sample(meter, work, passed_ns, others);
	else if (work->is_sure)
		charged_ns = charge_known(meter, work, part_ns, is_timed);
	else
		charged_ns = part_ns;
	if (!work->is_sure && !work->is_sample && work->is_alike && !work->copies_ns)
		estimate_learn(meter, work->what, part_ns / work->launches, work->launches);
	charge_out(meter, -(int64_t)work->mean_ns, -(int64_t)work->copies_ns,
		   -(int64_t)work->worst_ns);
	credit_spend(meter->card, charged_ns, lease_is_free(meter->card, now_ns));
}

/*
 * The work of the event at `index`. Events of several streams are not reached in their order: idle
 * time that was noted with earlier ones lies in front of this one too, and is taken off once.
 */
static struct work take_work(struct meter *meter, uint32_t index)
{
	struct work work = meter->events[index].work;

	for (uint32_t i = 0; i < index; i++) {
		struct work *earlier = &meter->events[i].work;

		work.idle_ns += earlier->idle_ns;
		work.pause_ns += earlier->pause_ns;
		earlier->idle_ns = earlier->pause_ns = 0;
	}
	return work;
}

/* The event at `index` was reached, `later_ns` after the reference if that is known. */
static void settle(struct meter *meter, uint32_t index, bool is_timed, int64_t later_ns,
		   uint64_t now_ns)
{
	const struct work work = take_work(meter, index);
	const uint64_t there_ns = is_timed && later_ns > 0 ? (uint64_t)later_ns : 0;
	uint64_t passed_ns = work.begun_ns ? less(now_ns, work.begun_ns) : 0;

	if (work.is_blank && is_timed && (!meter->event_ns || there_ns < meter->event_ns))
		meter->event_ns = there_ns;
	if (is_timed && work.is_sample) {
		passed_ns = less(there_ns, larger(work.lag_ns, charge_gap_ns(meter)));
	} else if (is_timed) {
		const uint64_t by_events_ns = less(there_ns, charge_gap_ns(meter) + work.idle_ns);

		/* Our clock knows when the first was launched. */
		passed_ns = work.is_from_idle ? smaller(passed_ns, by_events_ns) : by_events_ns;
	}
	const bool is_by_itself = is_timed && meter->reference_number == work.front;

	events_pass(meter, index, !is_timed || later_ns >= 0, now_ns);
	charge(meter, &work, passed_ns, is_timed, is_by_itself, now_ns);
}

uint64_t charge_over_ns(const struct meter *meter)
{
	return meter->launched_ns + meter->out_ns + meter->more_ns + GAP_NS;
}

/*
 * That it has ended is seen now. What several streams had is charged by the clock, so there the
 * time since `over_ns` counts as idle.
 */
static void become_idle(struct meter *meter, uint64_t over_ns, uint64_t now_ns)
{
	meter->idle_since_ns = meter->is_mixed ? smaller(over_ns, now_ns) : now_ns;
	meter->is_mixed = meter->is_learning = false;
	meter->aside_ns = 0;
	meter->more_ns = 0;
}

/* The next event of a stream that was not asked about. */
static uint32_t next_stream(const struct meter *meter, uint32_t index, const CUstream *asked,
			    unsigned count)
{
	for (; index < meter->count; index++) {
		unsigned i = 0;

		while (i < count && asked[i] != meter->events[index].stream)
			i++;
		if (i == count)
			break;
	}
	return index;
}

static void poll(struct meter *meter, uint64_t now_ns)
{
	CUstream asked[STREAMS_LOOKED_AT];
	unsigned count = 0;
	uint32_t index = 0;

	while (index < meter->count && count < STREAMS_LOOKED_AT) {
		bool is_timed;
		int64_t later_ns;

		if (events_look(meter, index, &is_timed, &later_ns)) {
			/* The first waits for the program, it seems, and holds nobody up. */
			if (index && less(now_ns, meter->first_ns) >= PATIENCE_NS)
				meter->aside_ns = meter->worst_ns;
			settle(meter, index, is_timed, later_ns, now_ns);
		} else {
			asked[count++] = meter->events[index].stream;
		}
		index = next_stream(meter, index, asked, count);
	}
}

void charge_poll(struct meter *meter, uint64_t now_ns)
{
	if (meter->is_polled || !meter->count)
		return;
	const uint64_t over_ns = larger(charge_over_ns(meter), meter->polled_ns);

	meter->is_polled = true;
	meter->polled_ns = now_ns;
	poll(meter, now_ns);
	meter->is_polled = false;
	if (charge_is_idle(meter) && !meter->idle_since_ns)
		become_idle(meter, over_ns, now_ns);
	lease_tell(meter, now_ns);
}

void charge_all(struct meter *meter, uint64_t asked_ns, uint64_t now_ns)
{
	struct work tail = meter->tail;
	const uint64_t seen_ns = meter->count && meter->reference ? meter->reference_ns : 0;
	/* It began when what is in front of it had ended. */
	const uint64_t ahead_ns =
		tail.pause_ns + (meter->count ? less(meter->out_ns, tail.mean_ns) : 0);

	/* Nothing was left to wait for. */
	if (meter->is_mixed && less(now_ns, asked_ns) < GAP_NS)
		tail.pause_ns += less(asked_ns, charge_over_ns(meter));
	charge_poll(meter, now_ns);
	if (!meter->count && !meter->is_polled && meter->tail.launches == tail.launches) {
		meter->tail = (struct work){0};
		charge(meter, &tail, less(less(now_ns, larger(tail.begun_ns, seen_ns)), ahead_ns),
		       false, false, now_ns);
		become_idle(meter, now_ns, now_ns);
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

bool charge_wants_event(const struct meter *meter)
{
	return meter->tail.worst_ns >= EXCESS_NS / 2;
}
