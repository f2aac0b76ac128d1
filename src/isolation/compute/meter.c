/*
 * Measuring card time with events around launches, which wait while the lease or the credit of
 * their slice does not let them go (compute/lease.c). There is no thread of ours: the threads that
 * launch and wait do it on the way.
 */
#include "compute/meter.h"

#include "books/memory_limit.h"
#include "books/slice_region.h"
#include "driver/cards.h"
#include "driver/stream.h"
#include "driver/timer.h"
#include "slice/slice.h"

#include <stdatomic.h>

/* Behind so much work, so many launches, or after so long an event is set. */
#define EVENT_WORK_NS 200000u
#define EVENT_EVERY_NS 5000000u
enum { EVENT_LAUNCHES = 64 };

/* The first launches of a context tell what an event costs. */
enum { BLANK_LAUNCHES = 16 };

/* For how long one without a cap tells of itself. */
#define TELL_NS 100000000u
enum { TELL_LAUNCHES = 8 };

#define POLL_EVERY_NS 200000u

/* So far the clocks of host and card differ by no more than an event takes. */
#define ANCHOR_EVERY_NS 1000000u

/* Shorter than a thread sleeps at least. */
#define SPIN_NS 60000u
/* No longer, where it may end at any moment. */
#define NAP_MOST_NS 1000000u
/* While other processes have work out, look so often whether they are dead. */
#define REAP_EVERY_NS 50000000u

static atomic_bool is_told; /* that a slice without a cap is at work */

void meter_after_fork(void)
{
	atomic_store(&is_told, false);
	events_after_fork();
	ahead_forget();
}

bool meter_is_capped(void)
{
	/* For good: after a resize to a whole card what is out has still to be measured. */
	static atomic_bool is_capped;

	if (!atomic_load_explicit(&is_capped, memory_order_relaxed)) {
		int left = (int)slice_limits()->card_count;

		while (left && !credit_is_capped(left - 1))
			left--;
		if (left)
			atomic_store(&is_capped, true);
	}
	return atomic_load_explicit(&is_capped, memory_order_relaxed);
}

/* A slice without a cap: its neighbours have to know when it is on the card with them. */
static void tell_neighbours(void)
{
	static _Atomic uint64_t told_ns;
	static __thread unsigned launches;
	const bool is_known = atomic_load_explicit(&is_told, memory_order_relaxed);

	if (is_known && ++launches % TELL_LAUNCHES)
		return;
	const uint64_t now_ns = timer_now_ns();

	if (is_known && now_ns - atomic_load_explicit(&told_ns, memory_order_relaxed) < TELL_NS / 4)
		return;
	atomic_store_explicit(&told_ns, now_ns, memory_order_relaxed);
	atomic_store_explicit(&is_told, true, memory_order_relaxed);
	slice_follow_limits();
	for (unsigned i = 0; i < slice_limits()->card_count; i++)
		lease_tell_without((int)i, now_ns + TELL_NS);
}

static void end_use(struct meter *meter)
{
	meter->users--;
	events_unlock(meter->card);
}

static void sleep_unlocked(int card, uint64_t nap_ns)
{
	events_unlock(card);
	if (nap_ns <= SPIN_NS)
		timer_spin_ns(nap_ns);
	else
		timer_sleep_ns(nap_ns);
	events_lock(card);
}

/* What a dead process had out keeps nobody from the card, and takes no part of it. */
static void reap(struct meter *meter, uint64_t now_ns)
{
	if (now_ns - meter->reaped_ns < REAP_EVERY_NS)
		return;
	meter->reaped_ns = now_ns;
	if (!credit_others(meter->card))
		return;
	events_unlock(meter->card);
	(void)account_held(meter->card, true);
	events_lock(meter->card);
}

/* Nanoseconds until it is worth asking again; 0: it may go. */
static uint64_t must_wait_ns(struct meter *meter, struct meter_launch *launch)
{
	if (charge_holds(meter, launch->estimate.worst_ns, launch->now_ns)) {
		const uint64_t nap_ns = meter->out_ns / 2;

		return nap_ns < SPIN_NS ? SPIN_NS : smaller(nap_ns, NAP_MOST_NS);
	}
	return lease_wait_ns(meter, launch);
}

/* Until the launch may go; what is out is measured meanwhile. Gives the lock up. */
static void await(struct meter *meter, struct meter_launch *launch)
{
	uint64_t waited_ns = 0;

	for (;;) {
		launch->now_ns = timer_now_ns();
		reap(meter, launch->now_ns);
		launch->estimate = launch->is_copy ? estimate_of_copy(meter, launch->what)
						   : estimate_of(meter, launch->what);
		if (!launch->is_copy)
			meter->kernel_ns = launch->now_ns;
		if (waited_ns || launch->now_ns - meter->polled_ns >= POLL_EVERY_NS)
			charge_poll(meter, launch->now_ns);
		uint64_t nap_ns = must_wait_ns(meter, launch);

		if (nap_ns && !waited_ns) {
			charge_poll(meter, launch->now_ns);
			nap_ns = must_wait_ns(meter, launch);
		}
		if (!nap_ns)
			break;
		/* What is out would be measured together with our nap. */
		if (meter->tail.launches && meter->stream == launch->stream)
			(void)events_set(meter, launch->stream);
		waited_ns += nap_ns;
		sleep_unlocked(meter->card, nap_ns);
	}
	if (waited_ns)
		credit_note_wait(meter->card, waited_ns);
}

/*
 * Waits until the launch may go. Then its meter is in use, and its lock taken; there is none where
 * the card has no cap.
 */
static struct meter *begin_use(struct meter_launch *launch)
{
	CUdevice device;
	int card;

	ahead_give_back();
	const CUcontext context = scope_context(launch->stream);

	if (!context || capture_has(launch->stream))
		return NULL;
	struct meter *meter = events_find(context);

	if (!meter && device_of_stream(launch->stream, &device) == CUDA_SUCCESS &&
	    card_find(device, &card) == CUDA_SUCCESS && credit_is_capped(card))
		meter = events_meter(context, card);
	if (meter) {
		meter->users++;
		await(meter, launch);
	}
	return meter;
}

void meter_await(CUstream stream)
{
	struct meter_launch launch = {.stream = stream};

	if (!meter_is_capped())
		return;
	struct meter *meter = begin_use(&launch);

	if (meter)
		end_use(meter);
}

/* The clocks of host and card are held together by events that the card gets to at once. */
static bool is_anchor_due(const struct meter *meter, const struct meter_launch *launch)
{
	return !launch->is_copy && charge_is_idle(meter) &&
	       launch->now_ns - meter->anchored_ns >= ANCHOR_EVERY_NS;
}

/* An event right before the launch. */
static void begin_span(struct meter *meter, struct meter_launch *launch, bool is_sample)
{
	if (meter->count + 3 >= METER_EVENTS)
		return;
	if (charge_is_idle(meter)) {
		meter->tail.is_anchor = true;
		meter->anchored_ns = launch->now_ns;
	}
	if (!events_set(meter, launch->stream))
		return;
	launch->is_sample = is_sample && !meter->tail.launches;
	launch->now_ns = timer_now_ns();
}

/* `sign`: 1, it goes out; -1, it did not. */
static void put_out(struct meter *meter, const struct meter_launch *launch, int sign)
{
	const int64_t mean_ns = sign * (int64_t)launch->estimate.mean_ns;

	charge_out(meter, mean_ns, launch->is_copy ? mean_ns : 0,
		   sign * (int64_t)launch->estimate.worst_ns);
	meter->more_ns = larger(meter->more_ns, launch->estimate.more_ns);
}

static void begin(struct meter *meter, struct meter_launch *launch)
{
	const bool wants_sample = launch->is_copy ? estimate_wants_copy_sample(meter, launch->what)
						  : estimate_wants_sample(meter, launch->what);

	charge_rest(meter, launch->now_ns);
	ahead_note_launch(meter);
	put_out(meter, launch, 1);
	meter->number++;
	lease_tell(meter, launch->now_ns);
	/* No sample by the clock: it would mostly be what comes behind a long one. */
	if (wants_sample || is_anchor_due(meter, launch))
		begin_span(meter, launch, wants_sample);
}

void meter_before(struct meter_launch *launch, uint64_t what, bool is_copy, CUstream stream)
{
	launch->meter = NULL;
	if (!meter_is_capped()) {
		tell_neighbours();
		return;
	}
	if (!is_copy && ahead_takes(what, stream))
		return;
	*launch = (struct meter_launch){.what = what, .is_copy = is_copy, .stream = stream};
	launch->meter = begin_use(launch);
	if (launch->meter) {
		begin(launch->meter, launch);
		launch->is_first = !launch->meter->tail.launches;
		events_unlock(launch->meter->card);
	}
}

/*
 * When an idle card has what was launched: as the driver's call ends, unless that has waited for it
 * (CUDA_LAUNCH_BLOCKING, a profiler): a call that took long may have, and of a sample it is asked.
 */
static uint64_t begun_ns(const struct meter_launch *launch, uint64_t now_ns)
{
	if (launch->is_copy)
		return launch->now_ns;
	bool is_there = now_ns - launch->now_ns < METER_CALL_NS && !events_launches_wait();

	if (launch->is_sample && !is_there) {
		const CUstreamCaptureMode mode = capture_exempt();

		is_there = cuda.cuStreamQuery &&
			   cuda.cuStreamQuery(launch->stream) == CUDA_ERROR_NOT_READY;
		capture_restore(mode);
	}
	return is_there ? now_ns : launch->now_ns;
}

static void add_to_tail(struct meter *meter, const struct meter_launch *launch, uint64_t begun_ns)
{
	struct work *tail = &meter->tail;
	const struct estimate *estimate = &launch->estimate;

	tail->is_sure = (!tail->launches || tail->is_sure) && estimate->is_known;
	tail->what = launch->what;
	tail->mean_ns += estimate->mean_ns;
	tail->copies_ns += launch->is_copy ? estimate->mean_ns : 0;
	tail->worst_ns += estimate->worst_ns;
	if (!tail->launches)
		tail->begun_ns = begun_ns;
	tail->launches++;
	tail->is_sample = launch->is_sample && tail->launches == 1;
	if (meter->number > 1 && launch->stream != meter->stream)
		meter->is_mixed = true;
	meter->stream = launch->stream;
	meter->launched_ns = tail->ended_ns = launch->now_ns;
}

static bool is_event_due(const struct meter *meter, const struct meter_launch *launch)
{
	const struct work *tail = &meter->tail;

	/* Once others wait on other streams, nothing can be set behind it any more. */
	if (meter->is_mixed && credit_balance(meter->card) <= 0)
		return true;
	return tail->is_sample || !launch->estimate.is_known || tail->mean_ns >= EVENT_WORK_NS ||
	       tail->launches >= EVENT_LAUNCHES ||
	       launch->now_ns - meter->recorded_ns >= EVENT_EVERY_NS;
}

/* At first two events behind a sample: while it runs, both are queued. */
static void set_blank(struct meter *meter, const struct meter_launch *launch)
{
	if (!launch->is_sample || meter->number > BLANK_LAUNCHES || meter->tail.launches)
		return;
	meter->tail.is_blank = true;
	(void)events_set(meter, launch->stream);
}

void meter_after(struct meter_launch *launch, CUresult result)
{
	struct meter *meter = launch->meter;

	if (!meter)
		return;
	const bool counts = launch->is_first || launch->is_fresh || events_launches_wait();
	const uint64_t now_ns = counts ? timer_now_ns() : launch->now_ns;
	const uint64_t begun = begun_ns(launch, now_ns);

	events_lock(meter->card);
	if (launch->is_fresh)
		charge_anchor(meter, now_ns);
	if (result == CUDA_SUCCESS) {
		add_to_tail(meter, launch, begun);
		if (events_launches_wait())
			meter->tail.ended_ns = now_ns;
		if (!is_event_due(meter, launch))
			ahead_pay(meter, launch, EVENT_LAUNCHES - meter->tail.launches,
				  EVENT_WORK_NS - meter->tail.mean_ns);
		else if (events_set(meter, launch->stream))
			set_blank(meter, launch);
	} else {
		put_out(meter, launch, -1);
	}
	end_use(meter);
}

void meter_before_wait(struct meter_wait *wait, CUstream stream, bool is_for_all)
{
	/* A green context's default stream, or all of its work, is a part of the primary's. */
	const bool is_part = stream_is_default(stream) && green_is_current();

	*wait = (struct meter_wait){.stream = is_part ? METER_NO_STREAM : stream,
				    .is_for_all = is_for_all && !is_part};
	if (!meter_is_capped())
		return;
	ahead_give_back();
	wait->context = wait->stream == METER_NO_STREAM ? NULL : scope_context(stream);
	const struct meter *meter = events_find(wait->context);

	if (meter) {
		wait->number = meter->number;
		events_unlock(meter->card);
	}
	wait->asked_ns = timer_now_ns();
}

/* All that the meter has out was waited for. */
static bool is_all_over(const struct meter *meter, const struct meter_wait *wait)
{
	return meter->context == wait->context && meter->number == wait->number &&
	       (wait->is_for_all || (!meter->is_mixed && meter->stream == wait->stream));
}

void meter_after_wait(const struct meter_wait *wait)
{
	const int count = (int)slice_limits()->card_count;

	if (!meter_is_capped()) {
		if (!wait->is_for_all || !atomic_load_explicit(&is_told, memory_order_relaxed))
			return;
		for (int card = 0; card < count; card++)
			lease_tell_without(card, timer_now_ns());
		atomic_store_explicit(&is_told, false, memory_order_relaxed);
		return;
	}
	const uint64_t now_ns = timer_now_ns();

	for (int card = 0; card < count; card++) {
		events_lock(card);
		for (struct meter *meter = events_first(card); meter; meter = meter->next) {
			if (is_all_over(meter, wait))
				charge_all(meter, wait->asked_ns, now_ns);
			else
				charge_poll(meter, now_ns);
		}
		events_unlock(card);
	}
}

/* The driver does so as well before it ends the context; without the lock. */
static void wait_for_all(CUcontext context)
{
	const struct context_scope there = scope_enter(context);
	const CUstreamCaptureMode mode = capture_exempt();

	if (cuda.cuCtxSynchronize)
		cuda.cuCtxSynchronize();
	capture_restore(mode);
	scope_end(there);
}

void meter_forget_context(CUcontext context)
{
	const uint64_t asked_ns = timer_now_ns();

	ahead_give_back();
	struct meter *meter = events_find(context);

	if (!meter)
		return;
	meter->context = NULL; /* nobody finds it any more */
	while (meter->users)
		sleep_unlocked(meter->card, NAP_MOST_NS);
	if (!charge_is_idle(meter)) {
		events_unlock(meter->card);
		wait_for_all(context);
		events_lock(meter->card);
	}
	while (meter->is_polled)
		sleep_unlocked(meter->card, NAP_MOST_NS);
	const uint64_t now_ns = timer_now_ns();

	charge_all(meter, asked_ns, now_ns);
	charge_forget(meter, now_ns);
	events_forget(meter);
}
