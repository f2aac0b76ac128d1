#include "ledger.h"

#include "settings.h"

#include <stdio.h>
#include <unistd.h>

#define PUBLISH_EVERY_NS 20000000u

enum { EXCLUSIVE_PROCESS = 3, PROHIBITED = 2 }; /* NVML_COMPUTEMODE_*, CU_COMPUTEMODE_* */

/* An MPS control daemon serves the directory that this process was given. */
static bool has_mps_server(void)
{
	const char *directory = setting("CUDA_MPS_PIPE_DIRECTORY");
	char path[512];
	const int length = directory ? snprintf(path, sizeof(path),
						"%s/nvidia-cuda-mps-control.pid", directory)
				     : -1;

	return length > 0 && (size_t)length < sizeof(path) && access(path, F_OK) == 0;
}

/* Under the node's lock. */
static bool is_available(const struct device *device)
{
	const struct gpusim_card *card = device_card(device);

	if (card->compute_mode == PROHIBITED)
		return false;
	if (card->compute_mode != EXCLUSIVE_PROCESS || device_instance(device))
		return true;
	gpusim_processes_reap(driver.node);
	const bool through_mps = has_mps_server();
	for (uint32_t slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &driver.node->processes[slot];

		if (process->used && process->card == device->card && process != device->process &&
		    !(through_mps && process->through_mps))
			return false;
	}
	return true;
}

bool ledger_is_available(const struct device *device)
{
	if (device->holders > 0)
		return true;
	gpusim_lock(driver.node);
	const bool available = is_available(device);
	gpusim_unlock(driver.node);
	return available;
}

static bool open_line(struct device *device)
{
	const struct gpusim_instance *instance = device_instance(device);
	struct gpusim_process *process = NULL;

	gpusim_lock(driver.node);
	if (is_available(device))
		process = gpusim_process_claim(
			driver.node, device->card,
			instance ? instance->gpu_instance : GPUSIM_NO_INSTANCE,
			instance ? instance->compute_instance : GPUSIM_NO_INSTANCE,
			GPUSIM_PROCESS_COMPUTE);
	if (process)
		process->through_mps = has_mps_server();
	gpusim_unlock(driver.node);
	if (!process)
		return false;
	device->process = process;
	device->sampled_ns = driver_now_ns();
	device->sampled_served_ns = 0;
	device->tenant = (uint32_t)(process - driver.node->processes);
	engine_open_tenant(device->engine, device->tenant, process->pid, process->start_ticks,
			   instance ? device->instance + 1 : 0);
	return true;
}

bool ledger_hold(struct device *device)
{
	if (device->holders == 0 && !open_line(device))
		return false;
	device->holders++;
	return true;
}

void ledger_let_go(struct device *device)
{
	if (--device->holders > 0)
		return;
	engine_close_tenant(device->engine, device->tenant);
	gpusim_lock(driver.node);
	gpusim_process_release(driver.node, device->process);
	gpusim_unlock(driver.node);
	device->process = NULL;
}

/* Of processes, on the card or on one of its instances, without asking of each whether it lives. */
static uint64_t held_bytes(const struct device *device, const struct gpusim_instance *instance)
{
	uint64_t bytes = 0;

	for (uint32_t slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &driver.node->processes[slot];

		if (process->used && process->card == device->card &&
		    (!instance || process->gpu_instance == instance->gpu_instance))
			bytes += process->used_bytes;
	}
	return bytes;
}

static uint64_t booked_bytes(const struct device *device)
{
	const struct gpusim_card *card = device_card(device);
	const struct gpusim_instance *instance = device_instance(device);

	return held_bytes(device, instance) +
	       (instance ? 0 : card->memory_reserved_bytes + card->memory_base_bytes);
}

static uint64_t free_bytes(const struct device *device)
{
	uint64_t total = device_total_bytes(device);
	uint64_t booked = booked_bytes(device);

	return booked < total ? total - booked : 0;
}

/* The work of processes that are gone from the table stops with them. */
static void bury_the_dead(struct device *device)
{
	for (uint32_t tenant = 0; tenant < GPUSIM_PROCESSES; tenant++) {
		const struct engine_tenant *open = &device->engine->tenants[tenant];
		const struct gpusim_process *process = &driver.node->processes[tenant];

		if (open->is_open &&
		    (!process->used || process->card != device->card || process->pid != open->pid ||
		     process->start_ticks != open->start_ticks))
			engine_close_tenant(device->engine, tenant);
	}
}

bool ledger_reap(struct device *device)
{
	bool found;

	gpusim_lock(driver.node);
	found = gpusim_processes_reap(driver.node) > 0;
	bury_the_dead(device);
	gpusim_unlock(driver.node);
	return found;
}

/* What a look after a call would miss: it may have been given back by then. */
static void note_peaks(const struct device *device)
{
	struct gpusim_card *card = &driver.node->cards[device->card];
	const uint64_t held = held_bytes(device, NULL);

	if (held > card->held_peak_bytes)
		card->held_peak_bytes = held;
	if (device->process->used_bytes > device->process->peak_bytes)
		device->process->peak_bytes = device->process->used_bytes;
}

static bool has_room(const struct device *device, const struct gpusim_group *group, uint64_t bytes)
{
	return bytes <= free_bytes(device) &&
	       gpusim_group_allows(driver.node, group, device->card, bytes);
}

static bool take(struct device *device, uint64_t bytes, bool is_counted)
{
	bool fits;

	gpusim_lock(driver.node);
	const struct gpusim_group *group =
		is_counted ? gpusim_own_group(driver.node, device->card) : NULL;
	fits = has_room(device, group, bytes);
	if (!fits && gpusim_processes_reap(driver.node)) {
		bury_the_dead(device);
		fits = has_room(device, group, bytes);
	}
	if (fits) {
		device->process->used_bytes += bytes;
		gpusim_group_charge(driver.node, group, device->process, bytes);
		note_peaks(device);
	}
	gpusim_unlock(driver.node);
	return fits;
}

static void give(struct device *device, uint64_t bytes, bool is_counted)
{
	struct gpusim_process *process = device->process;

	gpusim_lock(driver.node);
	process->used_bytes -= bytes;
	if (is_counted)
		process->charged_bytes -=
			bytes < process->charged_bytes ? bytes : process->charged_bytes;
	gpusim_unlock(driver.node);
}

bool ledger_take(struct device *device, uint64_t bytes)
{
	return take(device, bytes, true);
}

void ledger_give(struct device *device, uint64_t bytes)
{
	give(device, bytes, true);
}

bool ledger_take_managed(struct device *device, uint64_t bytes)
{
	return take(device, bytes, false);
}

void ledger_give_managed(struct device *device, uint64_t bytes)
{
	give(device, bytes, false);
}

void ledger_import(struct device *device, int64_t bytes)
{
	if (!device->process || !setting_number("GPU_SIMULATOR_NVML_IMPORTS", 1))
		return;
	gpusim_lock(driver.node);
	device->process->imported_bytes += (uint64_t)bytes;
	gpusim_unlock(driver.node);
}

uint64_t ledger_free_bytes(struct device *device, uint64_t *total)
{
	uint64_t bytes, used;

	*total = device_total_bytes(device);
	gpusim_lock(driver.node);
	if (gpusim_processes_reap(driver.node))
		bury_the_dead(device);
	bytes = free_bytes(device);
	if (gpusim_own_limit(driver.node, device->card, total, &used)) {
		const uint64_t left = used < *total ? *total - used : 0;

		bytes = left < bytes ? left : bytes;
	}
	gpusim_unlock(driver.node);
	return bytes;
}

static void publish_card(struct device *device, uint64_t seen_ns)
{
	struct gpusim_card *card = &driver.node->cards[device->card];
	unsigned percent;

	if (seen_ns - __atomic_load_n(&card->engine_seen_ns, __ATOMIC_RELAXED) < PUBLISH_EVERY_NS)
		return;
	percent = engine_busy_percent(device->engine, driver_now_ns());
	gpusim_lock(driver.node);
	gpusim_processes_reap(driver.node);
	bury_the_dead(device);
	card->engine_gpu_percent = percent;
	card->engine_memory_percent = percent / 2;
	card->engine_seen_ns = seen_ns;
	gpusim_unlock(driver.node);
}

/* A process's percentage is that of its own last sampling window. */
static void publish_process(struct device *device, uint64_t seen_ns)
{
	struct gpusim_process *process = device->process;
	uint64_t now_ns = driver_now_ns();
	uint64_t served_ns;
	uint32_t percent;

	if (!process || now_ns - device->sampled_ns < ENGINE_WINDOW_NS)
		return;
	served_ns = engine_served_ns(device->engine, device->tenant);
	percent = (uint32_t)((served_ns - device->sampled_served_ns) * 100 /
			     (now_ns - device->sampled_ns));
	device->sampled_ns = now_ns;
	device->sampled_served_ns = served_ns;
	gpusim_lock(driver.node);
	process->busy_ns = served_ns;
	process->gpu_percent = percent > 100 ? 100 : percent;
	process->seen_ns = seen_ns;
	gpusim_unlock(driver.node);
}

void ledger_publish(struct device *device)
{
	uint64_t seen_ns = gpusim_sampling_ns(driver.node);

	publish_card(device, seen_ns);
	publish_process(device, seen_ns);
}
