/*
 * Measuring card time with events, and holding launches back when it is spent.
 *
 * Work is measured in busy periods: a reference event when the card was idle, and
 * events behind long launches or now and then behind short ones. The time from
 * one to the next is what the work took, less what neighbours had of it. There
 * is no thread of ours: the threads that launch and wait do it on the way.
 */
#include "compute/meter.h"

#include "books/slice_region.h"
#include "compute/await.h"
#include "compute/backlog.h"
#include "compute/busy.h"
#include "compute/credit.h"
#include "compute/estimate.h"
#include "compute/events.h"
#include "compute/neighbours.h"
#include "driver/stream.h"
#include "driver/cards.h"
#include "driver/timer.h"
#include "slice/slice.h"

#include <stdatomic.h>

/*
 * Behind how much estimated work, and how many launches, an event is set. A launch
 * that had to wait for credit is always measured: it does not lack the time.
 */
#define EVENT_WORK_NS 200000u
#define EVENT_EVERY_NS 5000000u
enum { EVENT_LAUNCHES = 16 };

/* Shorter launches are told from gaps by samples; see compute/estimate.c. */
#define GAP_FROM_NS 50000u
enum { GAP_EVERY = 8 };

/* How often one without a cap looks for neighbours. */
#define BESIDE_EVERY_NS 20000000u
#define BESIDE_NS 2000000000u

static atomic_int capped; /* 0: not asked, 1: some card has a cap, 2: none */
static atomic_bool is_any_running;
static atomic_bool is_beside; /* slices at work that measure */

void meter_after_fork(void)
{
	await_after_fork();
	atomic_store(&is_any_running, false);
	events_forget_all();
	estimate_forget_all();
}

static bool is_any_capped(void)
{
	int answer = atomic_load_explicit(&capped, memory_order_relaxed);

	if (!answer) {
		answer = 2;
		for (unsigned i = 0; i < slice_limits()->card_count; i++)
			if (credit_is_capped((int)i))
				answer = 1;
		atomic_store(&capped, answer);
	}
	return answer == 1;
}

static bool has_neighbours_at_work(void)
{
	for (unsigned i = 0; i < slice_limits()->card_count; i++)
		if (neighbours_are_at_work((int)i, BESIDE_NS))
			return true;
	return false;
}

/*
 * Is there anything to measure? A slice without a cap tells of its work as well while
 * a neighbour that measures is at work: that one has to know what was not its own.
 */
static bool is_metered(void)
{
	static _Atomic uint64_t looked_ns;
	uint64_t last_ns, now_ns;

	if (is_any_capped())
		return true;
	now_ns = timer_now_ns();
	last_ns = atomic_load_explicit(&looked_ns, memory_order_relaxed);
	if (now_ns - last_ns >= BESIDE_EVERY_NS &&
	    atomic_compare_exchange_strong(&looked_ns, &last_ns, now_ns)) {
		await_lock();
		atomic_store(&is_beside, has_neighbours_at_work());
		await_unlock();
	}
	return atomic_load_explicit(&is_beside, memory_order_relaxed);
}

/* The card was idle: from here on it is at work. */
static void begin_busy(struct meter *meter, const struct meter_launch *launch)
{
	const uint64_t now_ns = launch->now_ns;
	const bool will_be_timed = launch->is_held_back || launch->estimate.varies ||
				   !launch->estimate.is_known ||
				   launch->estimate.work_ns >= EVENT_WORK_NS || meter->wary ||
				   backlog_wants_event(meter, launch->stream, now_ns) ||
				   now_ns - meter->recorded_ns >= EVENT_EVERY_NS;

	if (!meter->begun_ns || now_ns - meter->launched_ns >= BESIDE_NS)
		meter->begun_ns = now_ns;
	meter->is_running = true;
	meter->cursor_ns = now_ns;
	meter->unfinished_ns = now_ns;
	events_begin(meter, launch->stream, will_be_timed, now_ns);
	atomic_store_explicit(&is_any_running, true, memory_order_relaxed);
}

/* The meter of the current context; NULL where the card has no cap. With the lock. */
static struct meter *meter_here(CUcontext context)
{
	struct meter *meter = events_meter_of(context);
	int card;

	if (!meter && card_current(&card) == CUDA_SUCCESS)
		meter = events_meter(context, card);
	return meter && (credit_is_capped(meter->card) || atomic_load(&is_beside)) ? meter : NULL;
}

/* With the lock: the meter that may go on; NULL where nothing has to be measured. */
static struct meter *meter_with_credit(struct meter_launch *launch)
{
	return await_credit(meter_here(launch->there.context), launch);
}

void meter_await(CUstream stream)
{
	struct meter_launch launch = {.stream = stream};

	if (!is_metered())
		return;
	launch.there = scope_stream(stream);
	if (launch.there.context && !capture_has(stream)) {
		await_lock();
		(void)meter_with_credit(&launch);
		await_unlock();
	}
	scope_end(launch.there);
}

/*
 * Copies between two launches of a stream are no kernels, nor is its standing idle: an event
 * behind them, before the launch. Before short launches only now and then, until one is found.
 */
static void set_gap_event(struct meter *meter, const struct meter_launch *launch)
{
	const bool is_long = launch->estimate.work_ns >= EVENT_WORK_NS;

	if (meter->tail.launches || meter->stream != launch->stream ||
	    (launch->estimate.work_ns < GAP_FROM_NS && !launch->estimate.varies) ||
	    meter_is_mixed(meter, launch->now_ns))
		return;
	if (is_long || meter->wary || ++meter->groups % GAP_EVERY == 0)
		events_set(meter, launch->stream, 0, launch->now_ns);
}

static void begin(struct meter *meter, struct meter_launch *launch)
{
	launch->is_metered = true;
	launch->card = meter->card;
	launch->estimate = estimate_of(launch->what);
	if (meter->is_running)
		set_gap_event(meter, launch);
	backlog_add(meter, launch->stream, launch->estimate.worst_ns, launch->now_ns);
	if (!meter->is_running) {
		begin_busy(meter, launch);
		launch->is_first = meter->has_reference;
		launch->begun_ns = timer_now_ns();
	}
	credit_add_inflight(launch->card, (int64_t)launch->estimate.work_ns);
}

void meter_before(struct meter_launch *launch, uint64_t what, CUstream stream)
{
	*launch = (struct meter_launch){.what = what, .stream = stream};
	if (!is_metered())
		return;
	launch->there = scope_stream(stream);
	if (launch->there.context && !capture_has(stream)) {
		await_lock();
		struct meter *meter = meter_with_credit(launch);

		if (meter)
			meter = await_measurement(meter, launch);
		if (meter)
			begin(meter, launch);
		await_unlock();
	}
	scope_end(launch->there);
}

static void add_to_tail(struct meter *meter, const struct meter_launch *launch)
{
	struct work *tail = &meter->tail;

	tail->is_alike = !tail->launches || (tail->is_alike && tail->what == launch->what);
	tail->what = launch->what;
	if (tail->launches < METER_KINDS)
		tail->whats[tail->launches] = launch->what;
	tail->launches++;
	tail->varies = tail->varies || launch->estimate.varies;
	tail->work_ns += launch->estimate.work_ns;
	tail->solo_ns += launch->estimate.solo_ns;
	tail->sampled_ns += launch->estimate.sampled_ns;
	if (launch->stream != meter->stream)
		meter->mixed_ns = launch->now_ns;
	meter->stream = launch->stream;
	meter->launched_ns = launch->now_ns;
}

static bool is_event_due(struct meter *meter, const struct meter_launch *launch)
{
	const struct work *tail = &meter->tail;
	const uint64_t now_ns = launch->now_ns;

	if (meter->wary) {
		meter->wary--;
		return true;
	}
	/* Once others wait on other streams, nothing can be set behind it any more. */
	if (meter_is_mixed(meter, now_ns) && credit_wait_ns(meter->card))
		return true;
	return !launch->estimate.is_known || launch->is_held_back ||
	       tail->work_ns >= EVENT_WORK_NS || tail->launches >= EVENT_LAUNCHES ||
	       now_ns - meter->recorded_ns >= EVENT_EVERY_NS ||
	       backlog_wants_event(meter, launch->stream, now_ns);
}

/* Sets an event where one is due; a stranger among known work is measured by what they leave. */
static void record_if_due(struct meter *meter, const struct meter_launch *launch)
{
	struct work *tail = &meter->tail;
	const bool is_stranger = !launch->estimate.is_known;
	const uint64_t known_ns = is_stranger && tail->launches > 1 && !tail->is_alike
					  ? tail->work_ns - launch->estimate.work_ns
					  : 0;

	if (!is_event_due(meter, launch))
		return;
	if (is_stranger && known_ns)
		tail->is_alike = true;
	if (events_set(meter, launch->stream, known_ns, launch->now_ns))
		meter->recorded_ns = launch->now_ns;
}

/* The card was idle until the first launch came to it, somewhat later than the reference. */
static void note_lead(struct meter *meter, const struct meter_launch *launch)
{
	const uint64_t lead_ns = timer_now_ns() - launch->begun_ns;

	meter->has_lead = lead_ns < BUSY_GAP_NS;
	meter->lead_ns = lead_ns < BUSY_GAP_NS ? lead_ns : BUSY_GAP_NS;
}

void meter_after(struct meter_launch *launch, CUresult result)
{
	if (!launch->is_metered)
		return;
	scope_again(&launch->there);
	await_lock();
	struct meter *meter = events_meter_of(launch->there.context);

	if (meter && result == CUDA_SUCCESS) {
		if (launch->is_first)
			note_lead(meter, launch);
		add_to_tail(meter, launch);
		record_if_due(meter, launch);
		busy_extend(meter, launch->now_ns);
	} else {
		credit_add_inflight(launch->card, -(int64_t)launch->estimate.work_ns);
		if (meter)
			backlog_withdraw(meter, launch->stream, launch->estimate.worst_ns);
	}
	await_unlock();
	scope_end(launch->there);
}

/* Others may have been destroyed since their last launch. */
static bool is_there(CUstream stream, CUstream waited_for)
{
	return stream == waited_for || !stream || stream == CU_STREAM_LEGACY ||
	       stream == CU_STREAM_PER_THREAD;
}

void meter_before_sync(CUstream stream)
{
	if (!atomic_load_explicit(&is_any_running, memory_order_relaxed))
		return;
	await_lock();
	for (unsigned i = 0; i < events_count(); i++) {
		struct meter *meter = events_meter_at(i);

		if (meter && meter->is_running && meter->tail.varies &&
		    is_there(meter->stream, stream))
			(void)events_set(meter, meter->stream, 0, timer_now_ns());
	}
	await_unlock();
}

void meter_after_sync(void)
{
	bool is_running = false;

	if (!atomic_load_explicit(&is_any_running, memory_order_relaxed))
		return;
	await_lock();
	for (unsigned i = 0; i < events_count(); i++) {
		struct meter *meter = events_meter_at(i);

		if (meter)
			busy_poll(meter, timer_now_ns(), true);
		is_running = is_running || (meter && meter->is_running);
	}
	atomic_store_explicit(&is_any_running, is_running, memory_order_relaxed);
	await_unlock();
}

void meter_forget_context(CUcontext context)
{
	if (!events_count())
		return;
	await_lock();
	struct meter *meter = events_meter_of(context);

	if (meter) {
		const uint64_t now_ns = timer_now_ns();

		busy_poll(meter, now_ns, true);
		credit_add_inflight(meter->card,
				    -(int64_t)(meter->queued_ns + meter->tail.work_ns));
		meter->is_running = false;
		busy_publish(meter, now_ns);
		events_forget(meter);
	}
	await_unlock();
}
