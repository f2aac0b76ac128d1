/* Processes on a card or a MIG slice, in every struct version there was. */
#include "processes.h"
#include "call_frame.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Shared figures of a process count for this long after the engine wrote them. */
#define FRESH_NS 1000000000ull

/* Where the members of one struct version lie; 0: the version lacks it. */
struct layout {
	size_t bytes;
	size_t instances;
	size_t protected_bytes;
	size_t name;
};

/* What nvidia-smi 535 reads through the private table: the public struct and a name. */
struct named_process {
	unsigned pid;
	unsigned long long used_bytes;
	unsigned gpu_instance;
	unsigned compute_instance;
	unsigned long long protected_bytes;
	char name[4096];
};

static const struct layout version_1 = {.bytes = sizeof(nvmlProcessInfo_v1_t)};
static const struct layout version_2 = {.bytes = sizeof(nvmlProcessInfo_v2_t),
					.instances = offsetof(nvmlProcessInfo_v2_t, gpuInstanceId)};
static const struct layout detail = {
	.bytes = sizeof(nvmlProcessDetail_v1_t),
	.instances = offsetof(nvmlProcessDetail_v1_t, gpuInstanceId),
	.protected_bytes = offsetof(nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory)};
static const struct layout named = {.bytes = sizeof(struct named_process),
				    .instances = offsetof(struct named_process, gpu_instance),
				    .protected_bytes =
					    offsetof(struct named_process, protected_bytes),
				    .name = offsetof(struct named_process, name)};

/* Processes that the caller's pid namespace cannot see have no pid in it, and are not told. */
static bool is_listed(const struct call *call, const struct gpusim_process *process, uint32_t kind)
{
	if (!process->used || process->card != call->slot ||
	    (process->kind != kind && !(kind == GPUSIM_PROCESS_MPS && process->through_mps)))
		return false;
	if (call->instance && process->gpu_instance != call->instance->gpu_instance)
		return false;
	return gpusim_process_visible_pid(call->node, process) > 0;
}

static void write_entry(const struct layout *layout, const struct call *call,
			const struct gpusim_process *process, void *entry)
{
	nvmlProcessInfo_v1_t *start = entry;

	start->pid = (unsigned)gpusim_process_visible_pid(call->node, process);
	start->usedGpuMemory = gpusim_told(call->node) == GPUSIM_TOLD_NO_SIZE
				       ? 0
				       : process->used_bytes + process->imported_bytes;
	if (layout->instances) {
		unsigned ids[2] = {process->gpu_instance, process->compute_instance};
		memcpy((char *)entry + layout->instances, ids, sizeof(ids));
	}
	if (layout->protected_bytes)
		memset((char *)entry + layout->protected_bytes, 0, sizeof(unsigned long long));
	if (layout->name)
		(void)snprintf((char *)entry + layout->name, sizeof(process->name), "%s",
			       process->name);
}

/* The list, or how long it must be. */
static nvmlReturn_t write_list(const struct call *call, uint32_t kind, const struct layout *layout,
			       unsigned *count, void *entries)
{
	unsigned room = *count;
	unsigned found = 0;

	gpusim_processes_reap(call->node);
	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &call->node->processes[slot];
		if (!is_listed(call, process, kind))
			continue;
		if (found < room && entries)
			write_entry(layout, call, process, (char *)entries + found * layout->bytes);
		found++;
	}
	*count = found;
	return found > room || (found > 0 && !entries) ? NVML_ERROR_INSUFFICIENT_SIZE
						       : NVML_SUCCESS;
}

static nvmlReturn_t list(nvmlDevice_t device, uint32_t kind, const struct layout *layout,
			 unsigned *count, void *entries, const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	return leave(&call, write_list(&call, kind, layout, count, entries));
}

nvmlReturn_t list_named_processes(nvmlDevice_t device, uint32_t kind, unsigned *count,
				  void *entries)
{
	return list(device, kind, &named, count, entries, "nvmlInternalGetExportTable");
}

#define PROCESS_LIST(function, kind, type, layout)                                                 \
	nvmlReturn_t function(nvmlDevice_t device, unsigned int *infoCount, type *infos)           \
	{                                                                                          \
		return list(device, kind, &layout, infoCount, infos, __func__);                    \
	}

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, GPUSIM_PROCESS_COMPUTE, nvmlProcessInfo_v1_t,
	     version_1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, GPUSIM_PROCESS_COMPUTE, nvmlProcessInfo_v2_t,
	     version_2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, GPUSIM_PROCESS_COMPUTE, nvmlProcessInfo_t,
	     version_2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, GPUSIM_PROCESS_GRAPHICS, nvmlProcessInfo_v1_t,
	     version_1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GPUSIM_PROCESS_GRAPHICS,
	     nvmlProcessInfo_v2_t, version_2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GPUSIM_PROCESS_GRAPHICS, nvmlProcessInfo_t,
	     version_2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, GPUSIM_PROCESS_MPS, nvmlProcessInfo_v1_t,
	     version_1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, GPUSIM_PROCESS_MPS, nvmlProcessInfo_v2_t,
	     version_2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, GPUSIM_PROCESS_MPS, nvmlProcessInfo_t,
	     version_2)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_t *plist)
{
	/* mode: 0 compute, 1 graphics, 2 MPS, as nvml.h numbers them */
	static const uint32_t kinds[] = {GPUSIM_PROCESS_COMPUTE, GPUSIM_PROCESS_GRAPHICS,
					 GPUSIM_PROCESS_MPS};
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!plist || plist->version != nvmlProcessDetailList_v1)
		return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	if (plist->mode >= sizeof(kinds) / sizeof(kinds[0]))
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	return leave(&call, write_list(&call, kinds[plist->mode], &detail,
				       &plist->numProcArrayEntries, plist->procArray));
}

/* Shares of processes whose figures are newer than the caller has seen (microseconds). */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
					     nvmlProcessUtilizationSample_t *utilization,
					     unsigned int *processSamplesCount,
					     unsigned long long lastSeenTimeStamp)
{
	struct call call;
	unsigned found = 0;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!processSamplesCount)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	gpusim_processes_reap(call.node);
	for (unsigned slot = 0; gpusim_tells_utilisation(call.node) && slot < GPUSIM_PROCESSES;
	     slot++) {
		const struct gpusim_process *process = &call.node->processes[slot];
		uint64_t age_ns = sample_age_ns(call.node, process->seen_ns);
		if (!is_listed(&call, process, GPUSIM_PROCESS_COMPUTE) || !process->seen_ns ||
		    age_ns > FRESH_NS || wall_microseconds(age_ns) <= lastSeenTimeStamp)
			continue;
		if (found < *processSamplesCount && utilization)
			utilization[found] = (nvmlProcessUtilizationSample_t){
				.pid = (unsigned)gpusim_process_visible_pid(call.node, process),
				.timeStamp = wall_microseconds(age_ns),
				.smUtil = process->gpu_percent,
				.memUtil = process->memory_percent,
			};
		found++;
	}
	bool fits = found <= *processSamplesCount && (utilization || !found);
	*processSamplesCount = found;
	if (!found)
		return leave(&call, NVML_ERROR_NOT_FOUND);
	return leave(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}
