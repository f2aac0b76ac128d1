/*
 * Where a launch waits so that a compute cap is kept: while the lease or the credit of its slice
 * does not let it go (compute/lease.c).
 */
#include "compute/compute.h"

#include "books/slice_region.h"
#include "driver/timer.h"

#define POLL_EVERY_NS 200000u

/* Shorter than a thread sleeps at least. */
#define SPIN_NS 60000u
/* Waiting this long, look whether it is a dead process's work that we wait for. */
#define REAP_AFTER_NS 100000000u

static void reap(void)
{
	if (region_lock(slice_region())) {
		region_reap(slice_region());
		region_unlock(slice_region());
	}
}

/* The launch's meter, after a while without the lock; NULL when its context ended meanwhile. */
static struct meter *sleep_unlocked(const struct meter_launch *launch, uint64_t nap_ns)
{
	events_unlock();
	if (nap_ns <= SPIN_NS)
		timer_spin_ns(nap_ns);
	else
		timer_sleep_ns(nap_ns);
	events_lock();
	return events_meter_of(launch->there.context);
}

/* Nanoseconds until it is worth asking again; 0: it may go. */
static uint64_t must_wait_ns(struct meter *meter, struct meter_launch *launch)
{
	if (charge_holds(meter, launch->estimate.worst_ns, launch->now_ns)) {
		const uint64_t nap_ns = meter->out_ns / 2;

		return nap_ns < SPIN_NS ? SPIN_NS : nap_ns < 1000000 ? nap_ns : 1000000;
	}
	return lease_wait_ns(meter, launch);
}

struct meter *throttle_await(struct meter *meter, struct meter_launch *launch)
{
	uint64_t waited_ns = 0, reaped_ns = 0, begun_ns = 0;

	while (meter) {
		launch->now_ns = timer_now_ns();
		begun_ns = begun_ns ? begun_ns : launch->now_ns;
		launch->estimate = launch->is_copy ? estimate_of_copy(launch->what)
						   : estimate_of(launch->what);
		if (!launch->is_copy)
			meter->kernel_ns = launch->now_ns;
		if (waited_ns || launch->now_ns - meter->polled_ns >= POLL_EVERY_NS)
			meter = charge_poll(meter, launch->now_ns);
		uint64_t nap_ns = must_wait_ns(meter, launch);

		if (nap_ns && !waited_ns) {
			meter = charge_poll(meter, launch->now_ns);
			nap_ns = must_wait_ns(meter, launch);
		}
		if (!nap_ns)
			break;
		/* What is out would be measured together with our nap. */
		if (meter->tail.launches && meter->stream == launch->stream)
			meter = events_set(meter, launch->stream, launch->now_ns);
		meter = meter ? sleep_unlocked(launch, nap_ns) : NULL;
		waited_ns += nap_ns;
		if (waited_ns - reaped_ns >= REAP_AFTER_NS) {
			events_unlock();
			reap();
			events_lock();
			meter = events_meter_of(launch->there.context);
			reaped_ns = waited_ns;
		}
	}
	launch->waited_ns = begun_ns ? launch->now_ns - begun_ns : 0;
	if (meter && waited_ns)
		credit_note_wait(meter->card, waited_ns);
	return meter;
}
