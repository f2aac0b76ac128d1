/* Events are made once and used again: making one costs more than a launch. */
#include "compute/compute.h"

#include "driver/stream.h"
#include "driver/timer.h"
#include "slice/killpoint.h"
#include "slice/slice.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Cards do not wait for each other. All zero is an unlocked mutex. */
static struct {
	pthread_mutex_t lock;
	struct meter *first;
	_Atomic uint64_t tails;
} cards[LIMITS_CARDS];

bool events_launches_wait(void)
{
	static atomic_int answer; /* 0: not asked, 1: yes, 2: no */

	if (!atomic_load_explicit(&answer, memory_order_relaxed)) {
		const char *word = getenv("CUDA_LAUNCH_BLOCKING"); // NOLINT(concurrency-mt-unsafe)

		atomic_store(&answer, word && strcmp(word, "0") != 0 ? 1 : 2);
	}
	return atomic_load_explicit(&answer, memory_order_relaxed) == 1;
}

void events_lock(int card)
{
	pthread_mutex_lock(&cards[card].lock);
}

void events_unlock(int card)
{
	pthread_mutex_unlock(&cards[card].lock);
}

/* The parent may have been in the middle of anything. */
void events_after_fork(void)
{
	memset(cards, 0, sizeof(cards));
}

uint64_t events_number(int card)
{
	return atomic_load_explicit(&cards[card].tails, memory_order_relaxed) + 1;
}

void events_end_tail(struct meter *meter)
{
	meter->tail = (struct work){0};
	atomic_fetch_add_explicit(&cards[meter->card].tails, 1, memory_order_relaxed);
}

struct meter *events_first(int card)
{
	return cards[card].first;
}

static struct meter *meter_of(CUcontext context, int card)
{
	struct meter *meter = cards[card].first;

	while (meter && meter->context != context)
		meter = meter->next;
	return meter;
}

struct meter *events_find(CUcontext context)
{
	static __thread int last; /* most threads have one context */
	const int count = context ? (int)slice_limits()->card_count : 0;

	for (int i = 0; i < count; i++) {
		const int card = (last + i) % count;

		events_lock(card);
		struct meter *meter = meter_of(context, card);

		if (meter) {
			last = card;
			return meter;
		}
		events_unlock(card);
	}
	return NULL;
}

/* By mmap, as the application's allocator may wait in one of our hooks. */
struct meter *events_meter(CUcontext context, int card)
{
	struct meter *fresh = mmap(NULL, sizeof(*fresh), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (fresh == MAP_FAILED)
		return NULL;
	events_lock(card);
	struct meter *meter = meter_of(context, card);

	if (meter) {
		munmap(fresh, sizeof(*fresh));
		return meter;
	}
	fresh->context = context;
	fresh->card = card;
	fresh->next = cards[card].first;
	cards[card].first = fresh;
	return fresh;
}

static CUevent make_event(CUcontext context)
{
	CUevent event = NULL;
	CUcontext current;
	/* Of the meter's own context: a green one that is current ends before it. */
	const bool is_elsewhere = cuda.cuCtxPushCurrent_v2 && cuda.cuCtxPopCurrent_v2 &&
				  cuda.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;

	if (!cuda.cuEventCreate || cuda.cuEventCreate(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		event = NULL;
	if (is_elsewhere)
		cuda.cuCtxPopCurrent_v2(&current);
	return event;
}

/* Without the lock. The stream is named as the plain functions name it: the plain record serves. */
static bool record(CUcontext context, CUevent *event, CUstream stream)
{
	const struct context_scope there = scope_enter(context);
	const CUstreamCaptureMode mode = capture_exempt();

	if (!*event)
		*event = make_event(context);
	const bool is_set =
		*event && cuda.cuEventRecord && cuda.cuEventRecord(*event, stream) == CUDA_SUCCESS;

	capture_restore(mode);
	scope_end(there);
	return is_set;
}

static void give_event(struct meter *meter, CUevent event)
{
	if (event)
		meter->spares[meter->spare_count++] = event;
}

/* What could not be put behind an event is in front of what was launched since. */
static void put_back(struct meter *meter, const struct work *work)
{
	struct work *tail = &meter->tail;
	const struct work later = *tail;

	*tail = *work;
	tail->is_sample = tail->is_blank = tail->is_anchor = false;
	tail->ahead = later.ahead;
	tail->launches += later.launches;
	tail->mean_ns += later.mean_ns;
	tail->copies_ns += later.copies_ns;
	tail->worst_ns += later.worst_ns;
	tail->is_sure = tail->is_sure && (!later.launches || later.is_sure);
}

bool events_set(struct meter *meter, CUstream stream)
{
	struct timed_event timed = {.stream = stream, .work = meter->tail};

	meter->tail.is_sample = meter->tail.is_blank = meter->tail.is_anchor = false;
	/* One thread at a time: the list has a stream's events in the card's order. */
	if (find_stream(meter->set_on, meter->setters, stream) < meter->setters ||
	    meter->count + meter->setters == METER_EVENTS)
		return false;
	meter->set_on[meter->setters++] = stream;
	if (meter->spare_count)
		timed.event = meter->spares[--meter->spare_count];
	events_end_tail(meter);
	const CUcontext context = meter->context;

	events_unlock(meter->card);
	const uint64_t asked_ns = timer_now_ns();
	const bool is_set = record(context, &timed.event, stream);

	timed.set_ns = timer_now_ns();
	/* Else the thread was not running, and nobody knows when. */
	timed.work.is_anchor = timed.work.is_anchor && timed.set_ns - asked_ns < METER_CALL_NS;

	PAUSEPOINT(event_set);
	events_lock(meter->card);
	meter->setters--;
	meter->set_on[find_stream(meter->set_on, meter->setters, stream)] =
		meter->set_on[meter->setters];
	if (is_set) {
		if (!meter->count)
			meter->first_ns = timed.set_ns;
		timed.number = ++meter->events_ever;
		meter->events[meter->count++] = timed;
		meter->recorded_ns = timed.set_ns;
	} else {
		give_event(meter, timed.event);
		put_back(meter, &timed.work);
	}
	return is_set;
}

/* The second version differs only for events that have no time. */
static bool elapsed(CUevent from, CUevent to, float *took_ms)
{
	if (cuda.cuEventElapsedTime)
		return cuda.cuEventElapsedTime(took_ms, from, to) == CUDA_SUCCESS;
	return cuda.cuEventElapsedTime_v2 &&
	       cuda.cuEventElapsedTime_v2(took_ms, from, to) == CUDA_SUCCESS;
}

bool events_look(struct meter *meter, uint32_t index, bool *is_timed, int64_t *later_ns)
{
	const CUevent event = meter->events[index].event, reference = meter->reference;
	float later_ms = 0;

	events_unlock(meter->card);
	const CUstreamCaptureMode mode = capture_exempt();
	/* An error is as good as an end: the work will not be heard of again. */
	const bool is_reached =
		!cuda.cuEventQuery || cuda.cuEventQuery(event) != CUDA_ERROR_NOT_READY;

	*is_timed = is_reached && reference && elapsed(reference, event, &later_ms);
	capture_restore(mode);
	events_lock(meter->card);
	*later_ns = (int64_t)((double)later_ms * 1e6);
	return is_reached;
}

void events_pass(struct meter *meter, uint32_t index, uint64_t end_ns, uint64_t now_ns)
{
	const CUevent event = meter->events[index].event;
	const uint64_t number = meter->events[index].number;
	const bool is_anchor = meter->events[index].work.is_anchor;

	meter->count--;
	memmove(&meter->events[index], &meter->events[index + 1],
		(meter->count - index) * sizeof(meter->events[0]));
	if (!index)
		meter->first_ns = now_ns;
	if (end_ns < meter->reference_ns && !is_anchor) {
		give_event(meter, event);
		return;
	}
	give_event(meter, meter->reference);
	meter->reference = event;
	meter->reference_ns = end_ns;
	meter->reference_number = number;
}

void events_forget(struct meter *meter)
{
	struct meter **link = &cards[meter->card].first;

	while (*link != meter)
		link = &(*link)->next;
	*link = meter->next;
	events_end_tail(meter);
	events_unlock(meter->card);
	give_event(meter, meter->reference);
	for (uint32_t i = 0; i < meter->count; i++)
		give_event(meter, meter->events[i].event);
	for (uint32_t i = 0; cuda.cuEventDestroy_v2 && i < meter->spare_count; i++)
		cuda.cuEventDestroy_v2(meter->spares[i]);
	munmap(meter, sizeof(*meter));
}
