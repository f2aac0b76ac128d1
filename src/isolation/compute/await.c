/*
 * What a launch waits for: credit, the card's quiet for a neighbour, and now and then that it can
 * be measured by itself. Nobody sleeps with the lock.
 */
#include "compute/await.h"

#include "books/slice_region.h"
#include "compute/backlog.h"
#include "compute/busy.h"
#include "compute/credit.h"
#include "compute/estimate.h"
#include "compute/events.h"
#include "compute/quiet.h"
#include "driver/timer.h"

#include <pthread.h>

#define NAP_LEAST_NS 50000u
#define NAP_WORKING_NS 1000000u
#define NAP_MOST_NS 10000000u
/* For what is out to end, before a short kernel is measured by itself. */
#define SAMPLE_NAP_NS 5000u
/* Queued at most beside others; for a while no such limit where what is queued waits itself. */
#define AHEAD_NS 50000000u
#define AHEAD_FREE_NS 1000000000u
/* Queued at most while others are quiet for us. */
#define QUIET_QUEUED_NS 2000000u
/* Waiting this long, look whether it is a dead process's work that we wait for. */
#define REAP_AFTER_NS 100000000u

static pthread_mutex_t metering = PTHREAD_MUTEX_INITIALIZER;

void await_lock(void)
{
	pthread_mutex_lock(&metering);
}

void await_unlock(void)
{
	pthread_mutex_unlock(&metering);
}

void await_after_fork(void)
{
	metering = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* The launch's meter, after a while without the lock; NULL when its context ended meanwhile. */
static struct meter *sleep_unlocked(const struct meter_launch *launch, uint64_t nap)
{
	await_unlock();
	timer_sleep_ns(nap);
	await_lock();
	return events_meter_of(launch->there.context);
}

static uint64_t nap_ns(const struct meter *meter, uint64_t wait_ns)
{
	const uint64_t most_ns = meter->is_running ? NAP_WORKING_NS : NAP_MOST_NS;

	if (wait_ns < NAP_LEAST_NS)
		return NAP_LEAST_NS;
	return wait_ns < most_ns ? wait_ns : most_ns;
}

static void reap(void)
{
	if (region_lock(slice_region())) {
		region_reap(slice_region());
		region_unlock(slice_region());
	}
}

/* Charges what has ended: now and then, and when something waits for that. */
static void look(struct meter *meter, uint64_t worst_ns, uint64_t now_ns)
{
	const bool is_held = now_ns != meter->polled_ns && !busy_is_free(meter) &&
			     backlog_holds(meter, worst_ns, now_ns);

	if (is_held || now_ns - meter->polled_ns >= BUSY_GAP_NS)
		busy_poll(meter, now_ns, false);
	if (is_held && backlog_holds(meter, worst_ns, now_ns))
		busy_overtake(meter, now_ns);
}

/* Few at a time: what the others' quiet is too short for is not measured. */
static uint64_t quiet_nap_ns(const struct meter *meter)
{
	return meter->queued_ns + meter->tail.work_ns > QUIET_QUEUED_NS ? NAP_LEAST_NS : 0;
}

/* Not so much that others could not have a quiet moment soon. */
static bool is_far_ahead(struct meter *meter, uint64_t now_ns)
{
	if (!meter->is_running || meter->queued_ns + meter->tail.work_ns <= AHEAD_NS)
		return false;
	if (backlog_is_late(meter, now_ns) || backlog_stands_still(meter, now_ns))
		meter->late_ns = now_ns;
	return now_ns - meter->late_ns >= AHEAD_FREE_NS && !busy_is_alone(meter);
}

/* May this launch go on now? 0, or how long to wait before asking again. */
static uint64_t must_wait_ns(struct meter *meter, struct meter_launch *launch)
{
	const uint64_t now_ns = launch->now_ns;
	const uint64_t worst_ns = estimate_of(launch->what).worst_ns;

	look(meter, worst_ns, now_ns);
	if (!credit_is_capped(meter->card))
		return 0;
	if (quiet_lasts(meter, now_ns))
		return quiet_nap_ns(meter);
	credit_earn(meter->card, credit_inflight(meter->card) > 0, now_ns);
	if (is_far_ahead(meter, now_ns))
		return NAP_WORKING_NS;
	const uint64_t wait_ns = credit_wait_ns(meter->card);
	const uint64_t quiet_ns = quiet_of_others_ns(meter->card, now_ns);

	if (quiet_ns)
		return quiet_ns < QUIET_NAP_NS ? quiet_ns : QUIET_NAP_NS;
	if (!wait_ns && !backlog_holds(meter, worst_ns, now_ns))
		return 0;
	if (busy_is_free(meter))
		return 0;
	launch->is_held_back = launch->is_held_back || wait_ns;
	/* There is credit for what is out, but that waits itself, for what the program would do
	 * next. */
	if (wait_ns && meter_first(meter) && backlog_stands_still(meter, now_ns) &&
	    credit_is_left(meter->card))
		return backlog_nap_ns(meter, now_ns);
	return wait_ns ? nap_ns(meter, wait_ns) : backlog_nap_ns(meter, now_ns);
}

struct meter *await_credit(struct meter *meter, struct meter_launch *launch)
{
	uint64_t waited_ns = 0, reaped_ns = 0;

	while (meter) {
		launch->now_ns = timer_now_ns();
		const uint64_t nap = must_wait_ns(meter, launch);

		if (!nap)
			break;

		/* What is out would be measured together with our nap. */
		if (meter->tail.launches && meter->stream == launch->stream)
			events_set(meter, launch->stream, 0, launch->now_ns);
		meter = sleep_unlocked(launch, nap);
		waited_ns += nap;
		if (waited_ns - reaped_ns >= REAP_AFTER_NS) {
			await_unlock();
			reap();
			await_lock();
			meter = events_meter_of(launch->there.context);
			reaped_ns = waited_ns;
		}
	}
	if (meter && waited_ns)
		credit_note_wait(meter->card, waited_ns);
	return meter;
}

/*
 * Now and then a short kernel is measured by itself: what is out is waited for, for a moment, and
 * the launch has events on both sides. Returns NULL when the context ended meanwhile.
 */
static struct meter *sample_if_due(struct meter *meter, struct meter_launch *launch)
{
	if (meter_is_mixed(meter, launch->now_ns) || !estimate_wants_sample(launch->what))
		return meter;
	if (meter->is_running) {
		if (meter->tail.launches && meter->stream == launch->stream)
			events_set(meter, launch->stream, 0, launch->now_ns);
		meter = sleep_unlocked(launch, SAMPLE_NAP_NS);
		if (!meter)
			return NULL;
		launch->now_ns = timer_now_ns();
		busy_poll(meter, launch->now_ns, false);
		if (meter->is_running) {
			estimate_sample(launch->what, 0);
			return meter;
		}
	}
	launch->is_held_back = true;
	return meter;
}

/* The same without neighbours, where one is due. */
static struct meter *be_alone_if_due(struct meter *meter, struct meter_launch *launch)
{
	if (!quiet_begin(meter, launch->what, launch->now_ns))
		return meter;
	do {
		meter = sleep_unlocked(launch, QUIET_NAP_NS);
		if (!meter)
			return NULL;
		launch->now_ns = timer_now_ns();
	} while (!quiet_is_reached(meter, launch->what, launch->now_ns));
	busy_poll(meter, launch->now_ns, false);
	launch->is_held_back = true;
	return meter;
}

struct meter *await_measurement(struct meter *meter, struct meter_launch *launch)
{
	meter = sample_if_due(meter, launch);
	return meter ? be_alone_if_due(meter, launch) : NULL;
}
