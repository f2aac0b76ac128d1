#include "event.h"

#include "capture.h"
#include "clock.h"
#include "ledger.h"
#include "pool.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

static struct event *events;

/* A record that was never reached counts no more: another takes its place, or the event goes. */
static void forget_record(struct event *event)
{
	if (event->stream)
		event->stream->marked[event->number % ENGINE_MARKERS] = NULL;
	event->stream = NULL;
}

CUresult event_record(struct event *event, struct stream *stream)
{
	uint64_t number;
	CUresult result;

	forget_record(event);
	if (stream->capture)
		return capture_record(stream, event);
	capture_forget_event(event);
	result = stream_mark(stream, event, &number);
	if (result != CUDA_SUCCESS)
		return result;
	event->stream = stream;
	event->number = number;
	return CUDA_SUCCESS;
}

CUresult event_precede(struct event *event, struct stream *stream)
{
	if (event->capture)
		return capture_join(stream, event);
	if (stream->capture && event->stream)
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	if (!event->stream)
		return CUDA_SUCCESS;
	return stream_follow(stream, event->stream, event->number);
}

/* The capture has ended: events recorded in it can be waited for no more. */
static void forget_capture(const struct capture *capture)
{
	for (struct event *event = events; event; event = event->next) {
		if (event->capture == capture)
			capture_forget_event(event);
	}
}

__attribute__((constructor)) static void start(void)
{
	capture_at_end(forget_capture);
}

bool event_is_reached(struct event *event, uint64_t *left_ns)
{
	*left_ns = 0;
	if (event->stream)
		stream_is_idle(event->stream, left_ns);
	return !event->stream;
}

void event_wait(struct event *event)
{
	uint64_t left_ns;

	while (!event_is_reached(event, &left_ns)) {
		driver_doze(left_ns);
		if (event->stream)
			ledger_publish(event->stream->context->device);
	}
}

CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	struct event *event = calloc(1, sizeof(*event));
	if (!event)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	event->magic = EVENT_MAGIC;
	event->flags = flags;
	event->context = context;
	event->next = events;
	events = event;
	*handle = (CUevent)(void *)event;
	return driver_leave(CUDA_SUCCESS);
}

static CUresult destroy(CUevent handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct event *event = event_of(handle);
	if (!event)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	struct event **place = &events;
	while (*place != event)
		place = &(*place)->next;
	*place = event->next;
	forget_record(event);
	capture_forget_event(event);
	event->magic = 0;
	free(event);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent handle)
{
	return destroy(handle);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	return destroy(handle);
}

static CUresult record(CUevent handle, CUstream stream_handle, enum default_stream null)
{
	struct context *context;
	struct stream *stream;
	CUresult result;

	clock_pay(driver.node, COST_RECORD_NS);
	result = driver_enter(&context);
	if (result != CUDA_SUCCESS)
		return result;
	struct event *event = event_of(handle);
	if (!event)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	result = stream_find(context, stream_handle, null, &stream);
	if (result == CUDA_SUCCESS && stream->context != event->context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS)
		result = event_record(event, stream);
	return driver_leave(result);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return record(event, stream, LEGACY);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return record(event, stream, PER_THREAD);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	return flags > CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_INVALID_VALUE
						: record(event, stream, LEGACY);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
	return flags > CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_INVALID_VALUE
						: record(event, stream, PER_THREAD);
}

/* Enters the driver for an event that may be asked about; else it has left it again. */
static CUresult enter_reachable(CUevent handle, struct event **event)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	*event = event_of(handle);
	if (!*event)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	result = (*event)->capture ? CUDA_ERROR_CAPTURED_EVENT : capture_refuse_unsafe();
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUresult cuEventQuery(CUevent handle)
{
	struct event *event;
	uint64_t left_ns;
	const CUresult result = enter_reachable(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	ledger_publish(event->context->device);
	return driver_leave(event_is_reached(event, &left_ns) ? CUDA_SUCCESS
							      : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent handle)
{
	struct event *event;
	const CUresult result = enter_reachable(handle, &event);

	if (result != CUDA_SUCCESS)
		return result;
	event_wait(event);
	pools_release_unused(event->context->device);
	return driver_leave(CUDA_SUCCESS);
}

/* Parts in a million by which a card's clock counts more: of its own sign each, unless one is set.
 */
static double drift_ppm(const struct device *device)
{
	const char *uuid = device_card(device)->uuid, *text = setting("GPU_SIMULATOR_DRIFT_PPM");
	const double ppm = (double)gpusim_cost(COST_DRIFT_PPM, NULL);

	if (text && *text)
		return strtod(text, NULL);
	return uuid[strlen(uuid) - 1] % 2 ? ppm : -ppm;
}

/* When an event was reached, by the card's clock. */
static double card_ns(const struct event *event)
{
	const double tick_ns = (double)gpusim_cost(COST_TICK_NS, NULL);
	const double ns = (double)event->time_ns * (1 + drift_ppm(event->context->device) / 1e6);

	return tick_ns > 0 ? (double)(int64_t)(ns / tick_ns) * tick_ns : ns;
}

static CUresult elapsed(float *milliseconds, CUevent first, CUevent second)
{
	uint64_t left_ns;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct event *start = event_of(first);
	struct event *end = event_of(second);
	if (!milliseconds)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!start || !end || start->context != end->context ||
	    ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!event_is_reached(start, &left_ns) || !event_is_reached(end, &left_ns))
		return driver_leave(CUDA_ERROR_NOT_READY);
	if (!start->time_ns || !end->time_ns)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	*milliseconds = (float)((card_ns(end) - card_ns(start)) / 1e6);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	return elapsed(milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
	return elapsed(milliseconds, start, end);
}
