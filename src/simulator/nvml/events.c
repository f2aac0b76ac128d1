/* Event sets: what happened on registered cards since they were registered. */
#include "events.h"
#include "call_frame.h"

#include <stdlib.h>

/* A hang may begin while somebody waits; look at least this often. */
#define WAIT_SLICE_MILLISECONDS 1000u

struct nvmlEventSet_st {
	pthread_mutex_t mutex;
	uint64_t seen;                /* sequence of the last event looked at */
	uint64_t types[GPUSIM_CARDS]; /* what is wanted of each card */
	uint64_t since[GPUSIM_CARDS]; /* only events after this one */
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	struct gpusim_node *node;
	nvmlReturn_t result = ready(&node, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct nvmlEventSet_st *made = calloc(1, sizeof(*made));
	if (!made)
		return NVML_ERROR_MEMORY;
	pthread_mutex_init(&made->mutex, NULL);
	made->seen = atomic_load(&node->event_sequence);
	*set = made;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	struct gpusim_node *node;
	nvmlReturn_t result = ready(&node, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_destroy(&set->mutex);
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes,
				      nvmlEventSet_t set)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!set)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (eventTypes & ~SUPPORTED_EVENTS)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	pthread_mutex_lock(&set->mutex);
	if (!set->types[call.slot])
		set->since[call.slot] = atomic_load(&call.node->event_sequence);
	set->types[call.slot] |= eventTypes;
	pthread_mutex_unlock(&set->mutex);
	return leave(&call, NVML_SUCCESS);
}

/* The oldest event this set wants and has not seen; the ring may have dropped some. */
static bool next_event(struct gpusim_node *node, struct nvmlEventSet_st *set, nvmlEventData_t *data)
{
	uint64_t newest = atomic_load(&node->event_sequence);

	if (newest > GPUSIM_EVENTS && set->seen < newest - GPUSIM_EVENTS)
		set->seen = newest - GPUSIM_EVENTS;
	while (set->seen < newest) {
		const struct gpusim_event *event = &node->events[++set->seen % GPUSIM_EVENTS];
		if (event->sequence != set->seen || event->card >= GPUSIM_CARDS ||
		    !(set->types[event->card] & event->type) ||
		    event->sequence <= set->since[event->card])
			continue;
		*data = (nvmlEventData_t){
			.device = device_handle(event->card),
			.eventType = event->type,
			.eventData = event->value,
			.gpuInstanceId = event->gpu_instance,
			.computeInstanceId = event->compute_instance,
		};
		return true;
	}
	return false;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout,
			       const char *function)
{
	struct gpusim_node *node;
	uint64_t deadline = now_ns() / 1000000u + timeout;

	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		nvmlReturn_t result = ready(&node, function);
		if (result != NVML_SUCCESS)
			return result;
		uint32_t change = atomic_load(&node->change);
		gpusim_lock(node);
		pthread_mutex_lock(&set->mutex);
		bool found = next_event(node, set, data);
		pthread_mutex_unlock(&set->mutex);
		gpusim_unlock(node);
		if (found)
			return NVML_SUCCESS;
		uint64_t now = now_ns() / 1000000u;
		if (now >= deadline)
			return NVML_ERROR_TIMEOUT;
		uint64_t left = deadline - now;
		gpusim_await_change(node, change,
				    left < WAIT_SLICE_MILLISECONDS ? (unsigned)left
								   : WAIT_SLICE_MILLISECONDS);
	}
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	return wait_event(set, data, timeoutms, __func__);
}

/* The first version's struct ends before the instance ids: write no further. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	nvmlEventData_t wide;
	nvmlReturn_t result = wait_event(set, &wide, timeoutms, __func__);

	if (result != NVML_SUCCESS || !data)
		return data ? result : NVML_ERROR_INVALID_ARGUMENT;
	data->device = wide.device;
	data->eventType = wide.eventType;
	data->eventData = wide.eventData;
	return NVML_SUCCESS;
}
