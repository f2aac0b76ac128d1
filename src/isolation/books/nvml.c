/* What the real NVML says. Loaded only when a context is made: it takes milliseconds. */
#include "books/nvml.h"

#include "books/slice_region.h"
#include "driver/driver.h"
#include "slice/process.h"
#include "slice/slice.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

/* Processes on a card, of all containers; more are asked for again. */
enum { FEW = 128, LIST_TRIES = 8 };

enum { NOT_TRIED, STARTING, THERE, NOT_THERE };
static atomic_int nvml_start;

/*
 * Another thread of the parent may have been loading it. A child does without: with a parent that
 * had a context it cannot have one.
 */
static void probe_in_child(void)
{
	if (atomic_load(&nvml_start) == STARTING)
		atomic_store(&nvml_start, NOT_THERE);
}

/* NVML counts its starts: threads that come first together have each their own. */
static bool start(void)
{
	driver_go_inside();
	const bool is_there = driver_load_nvml(true) && nvml.nvmlInit_v2 &&
			      nvml.nvmlDeviceGetHandleByUUID && nvml.nvmlInit_v2() == NVML_SUCCESS;
	driver_come_back();
	return is_there;
}

/* Under no lock: it opens a library, and who has the loader's lock may be in another hook. */
static bool start_nvml(void)
{
	int state = NOT_TRIED;

	if (atomic_load(&nvml_start) < THERE) {
		process_in_children(probe_in_child);
		atomic_compare_exchange_strong(&nvml_start, &state, STARTING);
		atomic_store(&nvml_start, start() ? THERE : NOT_THERE);
	}
	return atomic_load(&nvml_start) == THERE;
}

/* A call may take milliseconds: the handle is asked for once, and again after it was of no use. */
static _Atomic(nvmlDevice_t) devices[LIMITS_CARDS];

static nvmlReturn_t device_of(int card, nvmlDevice_t *device)
{
	*device = atomic_load(&devices[card]);
	if (*device)
		return NVML_SUCCESS;
	const nvmlReturn_t result =
		nvml.nvmlDeviceGetHandleByUUID(slice_limits()->cards[card].uuid, device);

	if (result == NVML_SUCCESS)
		atomic_store(&devices[card], *device);
	return result;
}

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *);

/* Room for so many processes; from mmap, since the application's allocator may wait in a hook. */
struct listing {
	nvmlProcessInfo_v2_t *infos;
	unsigned room, count;
	size_t bytes;
};

static bool make_room(struct listing *list, unsigned room)
{
	if (list->infos)
		munmap(list->infos, list->bytes);
	list->room = room;
	list->bytes = room * sizeof(*list->infos);
	list->infos =
		mmap(NULL, list->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (list->infos == MAP_FAILED)
		list->infos = NULL;
	return list->infos;
}

/* False where the driver lacks this version. */
static bool ask(list_function *function, nvmlDevice_t device, struct listing *list,
		nvmlReturn_t *result)
{
	list->count = list->room;
	*result = function ? function(device, &list->count, list->infos)
			   : NVML_ERROR_FUNCTION_NOT_FOUND;
	return *result != NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* The second and third versions share a layout; the first lacks the MIG fields. */
static nvmlReturn_t list_once(nvmlDevice_t device, struct listing *list)
{
	nvmlProcessInfo_v1_t *shorter = (nvmlProcessInfo_v1_t *)(void *)list->infos;
	nvmlReturn_t result;

	if (ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3, device, list, &result) ||
	    ask(nvml.nvmlDeviceGetComputeRunningProcesses_v2, device, list, &result) ||
	    !nvml.nvmlDeviceGetComputeRunningProcesses)
		return result;
	list->count = list->room;
	result = nvml.nvmlDeviceGetComputeRunningProcesses(device, &list->count, shorter);
	/* From the last on: each becomes longer. */
	for (unsigned i = result == NVML_SUCCESS ? list->count : 0; i-- > 0;) {
		const nvmlProcessInfo_v1_t one = shorter[i];

		list->infos[i] =
			(nvmlProcessInfo_v2_t){.pid = one.pid, .usedGpuMemory = one.usedGpuMemory};
	}
	return result;
}

/* More processes may come between two calls. */
static nvmlReturn_t list_compute(int card, struct listing *list)
{
	nvmlDevice_t device;
	nvmlReturn_t result = device_of(card, &device);

	if (result != NVML_SUCCESS)
		return result;
	result = NVML_ERROR_INSUFFICIENT_SIZE;
	list->count = FEW;
	for (int tries = 0; result == NVML_ERROR_INSUFFICIENT_SIZE && tries < LIST_TRIES; tries++) {
		if (!make_room(list, list->count + FEW))
			return NVML_ERROR_MEMORY;
		result = list_once(device, list);
	}
	if (result != NVML_SUCCESS)
		atomic_store(&devices[card], NULL);
	return result;
}

/* False where several processes have this pid, each in its own pid namespace. */
static bool own_entry(const struct listing *list, uint64_t *bytes)
{
	unsigned found = 0;

	for (unsigned i = 0; i < list->count; i++) {
		if (list->infos[i].pid != (unsigned)process_self()->pid)
			continue;
		if (found++ ||
		    list->infos[i].usedGpuMemory == (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
			return false;
		*bytes = list->infos[i].usedGpuMemory;
	}
	return true;
}

bool nvml_own_listing(int card, uint64_t *bytes)
{
	struct listing list = {0};

	*bytes = 0;
	if (card < 0 || !start_nvml())
		return false;
	driver_go_inside();
	nvmlReturn_t result = list_compute(card, &list);

	/* Somebody ended NVML once more than it was started. */
	if (result == NVML_ERROR_UNINITIALIZED && nvml.nvmlInit_v2() == NVML_SUCCESS)
		result = list_compute(card, &list);
	driver_come_back();
	const bool is_known = result == NVML_SUCCESS && own_entry(&list, bytes);

	if (list.infos)
		munmap(list.infos, list.bytes);
	return is_known;
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
