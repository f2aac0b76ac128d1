/* Events are made once and used again: making one costs more than a launch. */
#include "compute/events.h"

#include "books/slice_region.h"
#include "compute/backlog.h"
#include "driver/stream.h"
#include "driver/context_scope.h"
#include "slice/slice.h"

#include <string.h>
#include <sys/mman.h>

static struct meter *meters; /* METERS of them, made at the first use */
static unsigned ever_used;   /* the first so many; all looks are at these */

static struct meter *all_meters(void)
{
	if (!meters) {
		void *room = mmap(NULL, METERS * sizeof(*meters), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		meters = room == MAP_FAILED ? NULL : room;
	}
	return meters;
}

void events_forget_all(void)
{
	/* In a child the parent's pages may be half written: take new ones. */
	meters = NULL;
	ever_used = 0;
}

unsigned events_count(void)
{
	return ever_used;
}

struct meter *events_meter_at(unsigned index)
{
	return meters[index].context ? &meters[index] : NULL;
}

struct meter *events_meter_of(CUcontext context)
{
	for (unsigned i = 0; i < ever_used; i++)
		if (meters[i].context == context)
			return &meters[i];
	return NULL;
}

struct meter *events_meter(CUcontext context, int card)
{
	struct meter *meter = context ? events_meter_of(context) : NULL;

	if (meter || !context || !all_meters())
		return meter;
	for (unsigned i = 0; i < METERS; i++) {
		meter = &meters[i];
		if (!meter->context || i == METERS - 1)
			break;
	}
	if (meter->context)
		return meter->card == card ? meter : NULL;
	if (ever_used <= (unsigned)(meter - meters))
		ever_used = (unsigned)(meter - meters) + 1;
	memset(meter, 0, sizeof(*meter));
	meter->context = context;
	meter->card = card;
	/* Several contexts of a process are several processes to the card. */
	meter->place = (int)((unsigned)(slice_slot() + (int)(meter - meters) * 17) % ACTIVITY_OPEN);
	return meter;
}

static CUevent take_event(struct meter *meter)
{
	CUevent event = NULL;
	CUcontext current;

	if (meter->spare_count)
		return meter->spares[--meter->spare_count];
	/* Of the meter's own context: a green one that is current ends before it. */
	const bool is_elsewhere = green_is_possible() && cuda.cuCtxPushCurrent_v2 &&
				  cuda.cuCtxPopCurrent_v2 &&
				  cuda.cuCtxPushCurrent_v2(meter->context) == CUDA_SUCCESS;

	if (!cuda.cuEventCreate || cuda.cuEventCreate(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		event = NULL;
	if (is_elsewhere)
		cuda.cuCtxPopCurrent_v2(&current);
	return event;
}

static void give_event(struct meter *meter, CUevent event)
{
	if (!event)
		return;
	if (meter->spare_count < sizeof(meter->spares) / sizeof(meter->spares[0]))
		meter->spares[meter->spare_count++] = event;
	else if (cuda.cuEventDestroy_v2)
		cuda.cuEventDestroy_v2(event);
}

/* The stream is named as the plain functions name it, so the plain record serves all. */
static CUevent record(struct meter *meter, CUstream stream)
{
	const CUstreamCaptureMode mode = capture_exempt();
	CUevent event = cuda.cuEventRecord ? take_event(meter) : NULL;

	if (event && cuda.cuEventRecord(event, stream) != CUDA_SUCCESS) {
		give_event(meter, event);
		event = NULL;
	}
	capture_restore(mode);
	return event;
}

void events_begin(struct meter *meter, CUstream stream, bool is_measured, uint64_t now_ns)
{
	give_event(meter, meter->reference);
	meter->reference = is_measured ? record(meter, stream) : NULL;
	meter->has_reference = meter->reference != NULL;
	meter->reference_ns = now_ns;
	meter->lead_ns = 0;
	meter->has_lead = false;
}

bool events_set(struct meter *meter, CUstream stream, uint64_t known_ns, uint64_t now_ns)
{
	CUevent event = meter->count < METER_EVENTS ? record(meter, stream) : NULL;

	if (!event)
		return false;
	if (!meter->count) {
		meter->progress_ns = meter->first_ns = now_ns;
		meter->aside_ns = 0;
	}
	meter->events[(meter->first + meter->count++) % METER_EVENTS] =
		(struct timed_event){.event = event,
				     .work = meter->tail,
				     .known_ns = known_ns,
				     .worst_ns = backlog_behind_event(meter, stream)};
	meter->queued_ns += meter->tail.work_ns;
	meter->tail = (struct work){0};
	return true;
}

/* An error is as good as an end: the work will not be heard of again. */
static bool is_reached(const struct timed_event *timed)
{
	return !cuda.cuEventQuery || cuda.cuEventQuery(timed->event) != CUDA_ERROR_NOT_READY;
}

bool events_is_reached(const struct meter *meter)
{
	return is_reached(&meter->events[meter->first]);
}

/* The second version differs only for events that have no time. */
static bool elapsed(CUevent from, CUevent to, float *took_ms)
{
	if (cuda.cuEventElapsedTime)
		return cuda.cuEventElapsedTime(took_ms, from, to) == CUDA_SUCCESS;
	return cuda.cuEventElapsedTime_v2 &&
	       cuda.cuEventElapsedTime_v2(took_ms, from, to) == CUDA_SUCCESS;
}

bool events_took(const struct meter *meter, uint64_t *took_ns)
{
	float took_ms = 0;

	if (!meter->has_reference ||
	    !elapsed(meter->reference, meter->events[meter->first].event, &took_ms))
		return false;
	/* Of another stream, and reached before the reference: it took nothing more. */
	*took_ns = took_ms > 0 ? (uint64_t)((double)took_ms * 1e6) : 0;
	*took_ns -= meter->lead_ns < *took_ns ? meter->lead_ns : *took_ns;
	return true;
}

void events_pass(struct meter *meter, uint64_t reached_ns)
{
	struct timed_event *timed = &meter->events[meter->first];
	float later_ms = 1;

	meter->queued_ns -= timed->work.work_ns;
	backlog_end(meter, timed->worst_ns);
	if (meter->has_reference)
		(void)elapsed(meter->reference, timed->event, &later_ms);
	meter->lead_ns = 0;
	meter->has_lead = false;
	if (later_ms >= 0) {
		give_event(meter, meter->reference);
		meter->reference = timed->event;
		meter->reference_ns = reached_ns;
		meter->has_reference = true;
	} else {
		give_event(meter, timed->event);
	}
	meter->first = (meter->first + 1) % METER_EVENTS;
	meter->count--;
}

static struct timed_event *timed_at(struct meter *meter, uint32_t index)
{
	return &meter->events[(meter->first + index) % METER_EVENTS];
}

bool events_overtake(struct meter *meter, struct timed_event *gone)
{
	uint32_t index = 1;

	while (index < meter->count && !is_reached(timed_at(meter, index)))
		index++;
	/* Not if the first was just then reached as well. */
	if (index >= meter->count || events_is_reached(meter))
		return false;
	*gone = *timed_at(meter, index);
	for (; index + 1 < meter->count; index++)
		*timed_at(meter, index) = *timed_at(meter, index + 1);
	meter->count--;
	meter->queued_ns -= gone->work.work_ns;
	backlog_end(meter, gone->worst_ns);
	give_event(meter, gone->event);
	return true;
}

static int64_t reprice(struct work *work, uint64_t what, uint64_t each_ns)
{
	const uint64_t before_ns = work->work_ns;

	if (work->launches && work->is_alike && work->what == what)
		work->work_ns = each_ns * work->launches;
	return (int64_t)(work->work_ns - before_ns);
}

int64_t events_reprice(struct meter *meter, uint64_t what, uint64_t each_ns)
{
	int64_t more_ns = reprice(&meter->tail, what, each_ns);

	for (uint32_t i = 1; i < meter->count; i++) {
		struct timed_event *timed = timed_at(meter, i);
		const int64_t its_ns = timed->known_ns ? 0 : reprice(&timed->work, what, each_ns);

		meter->queued_ns += (uint64_t)its_ns;
		more_ns += its_ns;
	}
	return more_ns;
}

void events_forget(struct meter *meter)
{
	if (cuda.cuEventDestroy_v2) {
		if (meter->reference)
			cuda.cuEventDestroy_v2(meter->reference);
		for (uint32_t i = 0; i < meter->count; i++)
			cuda.cuEventDestroy_v2(
				meter->events[(meter->first + i) % METER_EVENTS].event);
		for (uint32_t i = 0; i < meter->spare_count; i++)
			cuda.cuEventDestroy_v2(meter->spares[i]);
	}
	memset(meter, 0, sizeof(*meter));
}
