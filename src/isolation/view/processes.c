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
#include <string.h>

enum { NO_INSTANCE = -1 };

/* A process that holds memory on a card. */
struct holder {
	uint32_t pid;   /* as this container sees it */
	uint64_t bytes; /* asked for and overhead */
};

/* Without the dead; returns how many. */
static unsigned holders_of(int card, struct holder holders[REGION_SLOTS])
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

/* As NVML does it: too small an array is told how large it must be. */
nvmlReturn_t processes_list(nvmlDevice_t device, bool is_compute, unsigned *count, void *infos,
			    size_t bytes)
{
	struct holder holders[REGION_SLOTS];

	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	const unsigned found = is_compute ? holders_of(nvml_card(device), holders) : 0;
	const bool is_room = found <= *count;

	for (unsigned i = 0; is_room && i < found; i++) {
		const nvmlProcessDetail_v1_t entry = {.pid = holders[i].pid,
						      .usedGpuMemory = holders[i].bytes,
						      .gpuInstanceId = (unsigned)NO_INSTANCE,
						      .computeInstanceId = (unsigned)NO_INSTANCE};

		memcpy((char *)infos + i * bytes, &entry,
		       bytes < sizeof(entry) ? bytes : sizeof(entry));
	}
	*count = found;
	return is_room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The driver's answer to how many there are, whatever the number. */
static bool is_answered(nvmlReturn_t result)
{
	return result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE;
}

#define PROCESS_LIST(is_compute, name, layout)                                                     \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, layout *infos)             \
	{                                                                                          \
		unsigned none = 0;                                                                 \
                                                                                                   \
		NVML_ENTER(name, device, infoCount, infos);                                        \
		const nvmlReturn_t result = nvml.name(device, &none, NULL);                        \
                                                                                                   \
		return is_answered(result) ? processes_list(device, is_compute, infoCount, infos,  \
							    sizeof(layout))                        \
					   : result;                                               \
	}

PROCESS_LIST(true, nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESS_LIST(true, nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESS_LIST(true, nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
PROCESS_LIST(false, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
PROCESS_LIST(false, nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESS_LIST(false, nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
PROCESS_LIST(false, nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESS_LIST(false, nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESS_LIST(false, nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_t *plist)
{
	enum { COMPUTE_MODE = 0 };

	NVML_ENTER(nvmlDeviceGetRunningProcessDetailList, device, plist);
	if (!plist)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlProcessDetailList_t none = {.version = nvmlProcessDetailList_v1, .mode = plist->mode};
	const nvmlReturn_t result = nvml.nvmlDeviceGetRunningProcessDetailList(device, &none);

	if (!is_answered(result))
		return result;
	if (plist->version != nvmlProcessDetailList_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return processes_list(device, plist->mode == COMPUTE_MODE, &plist->numProcArrayEntries,
			      plist->procArray, sizeof(*plist->procArray));
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
