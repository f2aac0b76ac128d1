/*
 * NVML's process lists: this container's processes, by their pids in here. The
 * driver's lists hold the neighbours too, or the host's pids, so their entries
 * are not used at all; the slice's come from the slots. They compute; none draws. The
 * driver is asked all the same: a lost card, a wrong handle or a function that
 * it lacks is its to report.
 */
#include "view/nvml_entry.h"

#include "books/slice_region.h"
#include "slice/slice.h"

#include <stddef.h>

enum { NO_INSTANCE = -1 };

unsigned holders_of(int card, struct holder holders[REGION_SLOTS])
{
	struct region *region = slice_region();
	unsigned count = 0;

	if (card < 0 || !region_lock(region))
		return 0;
	region_reap(region);
	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		const struct region_card *books = &region->cards[card];
		const uint64_t bytes = books->used_bytes[i] + books->overhead_bytes[i];

		if (region->slots[i].state == SLOT_USED && bytes)
			holders[count++] = (struct holder){
				.pid = (uint32_t)region->slots[i].owner.pid, .bytes = bytes};
	}
	region_unlock(region);
	return count;
}

/* The two layouts of an entry: the first, and the one with MIG's ids since the second. */
static void put_short(void *infos, unsigned index, const struct holder *holder)
{
	((nvmlProcessInfo_v1_t *)infos)[index] =
		(nvmlProcessInfo_v1_t){.pid = holder->pid, .usedGpuMemory = holder->bytes};
}

static void put_long(void *infos, unsigned index, const struct holder *holder)
{
	((nvmlProcessInfo_v2_t *)infos)[index] =
		(nvmlProcessInfo_v2_t){.pid = holder->pid,
				       .usedGpuMemory = holder->bytes,
				       .gpuInstanceId = (unsigned)NO_INSTANCE,
				       .computeInstanceId = (unsigned)NO_INSTANCE};
}

/* As NVML does it: too small an array is told how large it must be. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *infos,
			 void (*put)(void *, unsigned, const struct holder *))
{
	struct holder holders[REGION_SLOTS];

	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	const unsigned found = holders_of(nvml_card(device), holders);
	const bool is_room = found <= *count;

	for (unsigned i = 0; is_room && i < found; i++)
		put(infos, i, &holders[i]);
	*count = found;
	return is_room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static nvmlReturn_t list_nobody(unsigned *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

/* The driver's answer to how many there are, whatever the number. */
static bool is_answered(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

#define PROCESS_LIST(name, layout, answer)                                                         \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, layout *infos)             \
	{                                                                                          \
		unsigned none = 0;                                                                 \
                                                                                                   \
		NVML_ENTER(name, device, infoCount, infos);                                        \
		const nvmlReturn_t result = nvml.name(device, &none, NULL);                        \
                                                                                                   \
		return is_answered(result) ? answer : result;                                      \
	}

#define COMPUTE_LIST(name, layout, put)                                                            \
	PROCESS_LIST(name, layout, list(device, infoCount, infos, put))

#define EMPTY_LIST(name, layout) PROCESS_LIST(name, layout, list_nobody(infoCount))

COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, put_short)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, put_long)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, put_long)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_t *plist)
{
	enum { COMPUTE_MODE = 0 };
	struct holder holders[REGION_SLOTS];

	NVML_ENTER(nvmlDeviceGetRunningProcessDetailList, device, plist);
	if (!plist)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlProcessDetailList_t none = {.version = nvmlProcessDetailList_v1, .mode = plist->mode};
	const nvmlReturn_t result = nvml.nvmlDeviceGetRunningProcessDetailList(device, &none);

	if (!is_answered(result))
		return result;
	if (plist->version != nvmlProcessDetailList_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const unsigned found =
		plist->mode == COMPUTE_MODE ? holders_of(nvml_card(device), holders) : 0;
	const bool is_room = found <= plist->numProcArrayEntries && (plist->procArray || !found);

	for (unsigned i = 0; is_room && i < found; i++)
		plist->procArray[i] =
			(nvmlProcessDetail_v1_t){.pid = holders[i].pid,
						 .usedGpuMemory = holders[i].bytes,
						 .gpuInstanceId = (unsigned)NO_INSTANCE,
						 .computeInstanceId = (unsigned)NO_INSTANCE};
	plist->numProcArrayEntries = found;
	return is_room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

static bool is_holder(const struct holder *holders, unsigned count, unsigned pid)
{
	for (unsigned i = 0; i < count; i++)
		if (holders[i].pid == pid)
			return true;
	return false;
}

/* Samples of other pids are left out. */
#define KEEP_OURS(device, samples, count)                                                          \
	do {                                                                                       \
		struct holder holders[REGION_SLOTS];                                               \
		const unsigned found = holders_of(nvml_card(device), holders);                     \
		unsigned kept = 0;                                                                 \
                                                                                                   \
		for (unsigned i = 0; i < (count); i++)                                             \
			if (is_holder(holders, found, (samples)[i].pid))                           \
				(samples)[kept++] = (samples)[i];                                  \
		(count) = kept;                                                                    \
		return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;                                 \
	} while (0)

/* Here the driver's figures are wanted. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
					     nvmlProcessUtilizationSample_t *utilization,
					     unsigned int *processSamplesCount,
					     unsigned long long lastSeenTimeStamp)
{
	NVML_ENTER(nvmlDeviceGetProcessUtilization, device, utilization, processSamplesCount,
		   lastSeenTimeStamp);
	const nvmlReturn_t result = nvml.nvmlDeviceGetProcessUtilization(
		device, utilization, processSamplesCount, lastSeenTimeStamp);

	if (result != NVML_SUCCESS || !utilization)
		return result;
	KEEP_OURS(device, utilization, *processSamplesCount);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
						   nvmlProcessesUtilizationInfo_t *info)
{
	NVML_ENTER(nvmlDeviceGetProcessesUtilizationInfo, device, info);
	const nvmlReturn_t result = nvml.nvmlDeviceGetProcessesUtilizationInfo(device, info);

	if (result != NVML_SUCCESS || !info->procUtilArray)
		return result;
	KEEP_OURS(device, info->procUtilArray, info->processSamplesCount);
}
