/* What the real NVML says. Loaded only when a context is made: it takes milliseconds. */
#include "books/nvml.h"

#include "books/slice_region.h"
#include "driver/driver.h"
#include "slice/process.h"
#include "slice/slice.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LISTED = 256 };

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static _Atomic enum { NOT_TRIED, STARTING, THERE, NOT_THERE } nvml_start;

/*
 * Another thread of the parent may have been starting it: half loaded it is of no use here,
 * nor needed, since a child of a process with a context cannot have one.
 */
static void probe_in_child(void)
{
	starting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	if (atomic_load(&nvml_start) == STARTING)
		atomic_store(&nvml_start, NOT_THERE);
}

/* With the lock. */
static bool start(void)
{
	atomic_store(&nvml_start, STARTING);
	driver_go_inside();
	const bool is_there = driver_load_nvml(true) && nvml.nvmlInit_v2 &&
			      nvml.nvmlDeviceGetHandleByUUID && nvml.nvmlInit_v2() == NVML_SUCCESS;
	driver_come_back();
	return is_there;
}

static bool start_nvml(void)
{
	if (atomic_load(&nvml_start) < THERE) {
		process_in_children(probe_in_child);
		pthread_mutex_lock(&starting);
		if (atomic_load(&nvml_start) == NOT_TRIED)
			atomic_store(&nvml_start, start() ? THERE : NOT_THERE);
		pthread_mutex_unlock(&starting);
	}
	return atomic_load(&nvml_start) == THERE;
}

/* A call may take milliseconds: the handle is asked for once, and again after it was of no use. */
static _Atomic(nvmlDevice_t) devices[LIMITS_CARDS];

static bool device_of(int card, nvmlDevice_t *device)
{
	if (card < 0 || !start_nvml())
		return false;
	*device = atomic_load(&devices[card]);
	if (*device)
		return true;
	if (nvml.nvmlDeviceGetHandleByUUID(slice_limits()->cards[card].uuid, device) !=
	    NVML_SUCCESS)
		return false;
	atomic_store(&devices[card], *device);
	return true;
}

static bool or_forget(int card, bool is_told)
{
	if (!is_told && card >= 0)
		atomic_store(&devices[card], NULL);
	return is_told;
}

bool nvml_card_used(int card, uint64_t *bytes)
{
	nvmlMemory_t memory;
	nvmlDevice_t device;

	driver_go_inside();
	const bool is_known = device_of(card, &device) && nvml.nvmlDeviceGetMemoryInfo &&
			      nvml.nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS;
	driver_come_back();
	if (is_known)
		*bytes = memory.used;
	return or_forget(card, is_known);
}

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *);

/* False where the driver lacks this version. */
static bool ask(list_function *function, nvmlDevice_t device, unsigned *count,
		nvmlProcessInfo_v2_t *infos, nvmlReturn_t *result)
{
	*count = LISTED;
	*result = function ? function(device, count, infos) : NVML_ERROR_FUNCTION_NOT_FOUND;
	return *result != NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* The second and third versions share a layout; the first lacks the MIG fields. */
static bool list_compute(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *infos)
{
	nvmlProcessInfo_v1_t short_infos[LISTED];
	nvmlReturn_t result;

	if (ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3, device, count, infos, &result) ||
	    ask(nvml.nvmlDeviceGetComputeRunningProcesses_v2, device, count, infos, &result))
		return result == NVML_SUCCESS;
	*count = LISTED;
	if (!nvml.nvmlDeviceGetComputeRunningProcesses ||
	    nvml.nvmlDeviceGetComputeRunningProcesses(device, count, short_infos) != NVML_SUCCESS)
		return false;
	for (unsigned i = 0; i < *count; i++)
		infos[i] = (nvmlProcessInfo_v2_t){.pid = short_infos[i].pid,
						  .usedGpuMemory = short_infos[i].usedGpuMemory};
	return true;
}

bool nvml_own_listing(int card, uint64_t *bytes)
{
	nvmlProcessInfo_v2_t infos[LISTED];
	nvmlDevice_t device;
	unsigned count = 0;

	*bytes = 0;
	driver_go_inside();
	const bool is_listed = device_of(card, &device) && list_compute(device, &count, infos);

	driver_come_back();
	or_forget(card, is_listed);
	unsigned found = 0;

	for (unsigned i = 0; is_listed && i < count; i++) {
		if (infos[i].pid != (unsigned)process_self()->pid)
			continue;
		/* Other containers have processes of this pid as well: which is us, nobody can
		 * tell. */
		if (found++ ||
		    infos[i].usedGpuMemory == (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
			return false;
		*bytes = infos[i].usedGpuMemory;
	}
	return is_listed;
}

bool nvml_knows_pid(void)
{
	return (process_sees_host_pids() || atomic_load(&slice_region()->lists_pids)) &&
	       start_nvml();
}

void nvml_learn(bool was_listed, bool is_listed)
{
	if (!was_listed && is_listed)
		atomic_store(&slice_region()->lists_pids, 1);
}
