/* The library's own life: init, shutdown, and the frame around every call. */
#include "call_frame.h"

#include "../costs.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What `nvmlInit` saw. NVML enumerates once: a card plugged in later needs a new init. */
static struct {
	pthread_mutex_t mutex;
	unsigned references;
	struct gpusim_node *_Atomic node;
	unsigned cards_count;
	uint32_t slots[GPUSIM_CARDS];
} library = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct nvmlDevice_st {
	uint8_t unused;
};

static struct nvmlDevice_st handles[GPUSIM_CARDS][GPUSIM_INSTANCES + 1];

/* The first driver, as major version, that has a function. */
struct symbol {
	const char *name;
	unsigned since;
};

#define SYMBOL(name, since) {#name, since},
#define UNSUPPORTED(name, since) {#name, since},
static const struct symbol symbols[] = {
#include "symbols.def"
};

/* A driver that is older than a function has no such function. */
static bool driver_has(const struct gpusim_node *node, const char *function)
{
	unsigned long major = strtoul(node->driver_version, NULL, 10);

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		if (strcmp(symbols[i].name, function) == 0)
			return major >= symbols[i].since;
	}
	return true;
}

/* Drivers take milliseconds for a call where cards sleep between them, or are many. */
static void take_time(uint64_t calls_so_far)
{
	const uint64_t us = gpusim_cost_at_times(COST_NVML_CALL_US, calls_so_far);
	const struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

	if (us)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static _Atomic uint64_t calls;

/* Calls of this process so far. */
__attribute__((visibility("default"))) uint64_t gpusim_nvml_calls(void);
uint64_t gpusim_nvml_calls(void)
{
	return calls;
}

nvmlReturn_t ready(struct gpusim_node **node, const char *function)
{
	const uint64_t number = ++calls;

	*node = library.node;
	if (!*node)
		return NVML_ERROR_UNINITIALIZED;
	take_time(number);
	gpusim_wait_while_hanging(*node);
	return driver_has(*node, function) ? NVML_SUCCESS : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t enter(struct call *call, const char *function)
{
	*call = (struct call){0};
	nvmlReturn_t result = ready(&call->node, function);
	if (result == NVML_SUCCESS)
		gpusim_lock(call->node);
	return result;
}

/* Blocks as long as calls of this name take on the card, or until it is no longer slow. */
static void wait_for_card(struct gpusim_node *node, uint32_t slot, const char *function)
{
	const struct gpusim_card *card = &node->cards[slot];
	const uint64_t begun_ns = now_ns();

	for (;;) {
		const uint32_t change = atomic_load(&node->change);
		gpusim_lock(node);
		const bool is_slow =
			strncmp(function, card->slow_call, strlen(card->slow_call)) == 0;
		const uint64_t ms = is_slow ? card->slow_seconds * 1000ull : 0;
		gpusim_unlock(node);
		const uint64_t waited_ms = (now_ns() - begun_ns) / 1000000u;
		if (waited_ms >= ms)
			return;
		gpusim_await_change(node, change, (unsigned)(ms - waited_ms));
	}
}

nvmlReturn_t enter_place(struct call *call, nvmlDevice_t device, const char *function)
{
	unsigned instance = 0;
	uint32_t slot = 0;
	const bool is_place = handle_place(device, &slot, &instance);

	if (is_place && library.node)
		wait_for_card(library.node, slot, function);
	nvmlReturn_t result = enter(call, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!is_place)
		return leave(call, NVML_ERROR_INVALID_ARGUMENT);
	call->slot = slot;
	call->card = &call->node->cards[call->slot];
	if (!call->card->present || call->card->lost)
		return leave(call, NVML_ERROR_GPU_IS_LOST);
	if (instance == GPUSIM_INSTANCES)
		return NVML_SUCCESS;
	call->instance = &call->card->instances[instance];
	if (!call->card->mig_enabled || !call->instance->present)
		return leave(call, NVML_ERROR_NOT_FOUND);
	return NVML_SUCCESS;
}

nvmlReturn_t enter_device(struct call *call, nvmlDevice_t device, const char *function)
{
	nvmlReturn_t result = enter_place(call, device, function);

	if (result == NVML_SUCCESS && call->instance && call->instance->is_empty)
		return leave(call, NVML_ERROR_NOT_FOUND);
	return result;
}

nvmlReturn_t enter_card(struct call *call, nvmlDevice_t device, const char *function)
{
	nvmlReturn_t result = enter_device(call, device, function);

	if (result == NVML_SUCCESS && call->instance)
		return leave(call, NVML_ERROR_NOT_SUPPORTED);
	return result;
}

nvmlReturn_t leave(struct call *call, nvmlReturn_t result)
{
	gpusim_unlock(call->node);
	return result;
}

nvmlDevice_t device_handle(uint32_t slot)
{
	return &handles[slot][GPUSIM_INSTANCES];
}

nvmlDevice_t instance_handle(uint32_t slot, unsigned instance)
{
	return &handles[slot][instance];
}

bool handle_place(nvmlDevice_t device, uint32_t *slot, unsigned *instance)
{
	uintptr_t first = (uintptr_t)handles;
	uintptr_t place = ((uintptr_t)device - first) / sizeof(handles[0][0]);

	if ((uintptr_t)device < first || place >= sizeof(handles) / sizeof(handles[0][0]))
		return false;
	*slot = (uint32_t)(place / (GPUSIM_INSTANCES + 1u));
	*instance = (unsigned)(place % (GPUSIM_INSTANCES + 1u));
	return true;
}

unsigned cards_at_start(uint32_t slots[GPUSIM_CARDS])
{
	memcpy(slots, library.slots, sizeof(library.slots));
	return library.cards_count;
}

nvmlReturn_t give_text(char *target, unsigned length, const char *text)
{
	if (!target)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(target, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t give_number(unsigned *target, unsigned number)
{
	if (!target)
		return NVML_ERROR_INVALID_ARGUMENT;
	*target = number;
	return NVML_SUCCESS;
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t wall_microseconds(uint64_t age_ns)
{
	struct timespec wall;

	clock_gettime(CLOCK_REALTIME, &wall);
	uint64_t wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
	return (wall_ns - age_ns) / 1000u;
}

uint64_t sample_age_ns(const struct gpusim_node *node, uint64_t seen_ns)
{
	const uint64_t time_ns = gpusim_sampling_ns(node);

	return time_ns > seen_ns ? time_ns - seen_ns : 0;
}

static nvmlReturn_t first_init(void)
{
	struct gpusim_node *node = gpusim_attach(true);

	if (!node)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	gpusim_wait_while_hanging(node);
	gpusim_lock(node);
	bool loaded = node->driver_version[0] != '\0';
	library.cards_count = gpusim_visible_cards(node, library.slots);
	gpusim_unlock(node);
	if (!loaded)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	library.node = node;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t result = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&library.mutex);
	if (library.references == 0)
		result = first_init();
	if (result == NVML_SUCCESS)
		library.references++;
	pthread_mutex_unlock(&library.mutex);
	return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&library.mutex);
	if (library.references > 0) {
		gpusim_wait_while_hanging(library.node);
		if (--library.references == 0)
			library.node = NULL;
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&library.mutex);
	return result;
}
