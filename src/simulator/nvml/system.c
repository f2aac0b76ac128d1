/* Functions that name no card: versions, counts, error texts, process names. */
#include "call_frame.h"

#include <stdio.h>
#include <string.h>

static const char *const error_texts[] = {
	[NVML_SUCCESS] = "Success",
	[NVML_ERROR_UNINITIALIZED] = "Uninitialized",
	[NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
	[NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
	[NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
	[NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
	[NVML_ERROR_NOT_FOUND] = "Not Found",
	[NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
	[NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
	[NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
	[NVML_ERROR_TIMEOUT] = "Timeout",
	[NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
	[NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
	[NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
	[NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
	[NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
	[NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
	[NVML_ERROR_OPERATING_SYSTEM] = "GPU access blocked by the operating system",
	[NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
	[NVML_ERROR_IN_USE] = "In use by another client",
	[NVML_ERROR_MEMORY] = "Insufficient Memory",
	[NVML_ERROR_NO_DATA] = "No data",
	[NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
	[NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
	[NVML_ERROR_GPU_NOT_FOUND] = "GPU not found",
	[NVML_ERROR_INVALID_STATE] = "Invalid state",
};

const char *nvmlErrorString(nvmlReturn_t result)
{
	size_t number = (size_t)result;

	if (number < sizeof(error_texts) / sizeof(error_texts[0]) && error_texts[number])
		return error_texts[number];
	return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	struct call call;
	nvmlReturn_t result = enter(&call, __func__);

	if (result != NVML_SUCCESS)
		return result;
	return leave(&call, give_text(version, length, call.node->driver_version));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	struct call call;
	nvmlReturn_t result = enter(&call, __func__);

	if (result != NVML_SUCCESS)
		return result;
	return leave(&call, give_text(version, length, call.node->nvml_version));
}

static nvmlReturn_t give_cuda_version(int *version, const char *function)
{
	struct call call;
	nvmlReturn_t result = enter(&call, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!version)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*version = (int)call.node->cuda_version;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
	return give_cuda_version(cudaDriverVersion, __func__);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
	return give_cuda_version(cudaDriverVersion, __func__);
}

/* The process's own idea of its name; for strangers what /proc says of the pid. */
static bool stranger_name(unsigned pid, char *name, size_t bytes)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	size_t length = fread(name, 1, bytes - 1, file);
	(void)fclose(file);
	name[length] = '\0';
	return length > 0;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char stranger[256];
	struct call call;
	nvmlReturn_t result = enter(&call, __func__);

	if (result != NVML_SUCCESS)
		return result;
	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &call.node->processes[slot];
		if (process->used && gpusim_process_visible_pid(call.node, process) == (int)pid)
			return leave(&call, give_text(name, length, process->name));
	}
	if (!stranger_name(pid, stranger, sizeof(stranger)))
		return leave(&call, NVML_ERROR_NOT_FOUND);
	return leave(&call, give_text(name, length, stranger));
}

static nvmlReturn_t give_zero(unsigned *count, const char *function)
{
	struct gpusim_node *node;
	nvmlReturn_t result = ready(&node, function);

	return result == NVML_SUCCESS ? give_number(count, 0) : result;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *unitCount)
{
	return give_zero(unitCount, __func__);
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *deviceCount)
{
	return give_zero(deviceCount, __func__);
}

/* The name that it had before driver 470, and which nvml.h no longer has. */
__attribute__((visibility("default"))) nvmlReturn_t
nvmlGetBlacklistDeviceCount(unsigned int *deviceCount);

nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *deviceCount)
{
	return give_zero(deviceCount, __func__);
}

static nvmlReturn_t count_cards(unsigned *count, const char *function)
{
	uint32_t slots[GPUSIM_CARDS];
	struct gpusim_node *node;
	nvmlReturn_t result = ready(&node, function);

	return result == NVML_SUCCESS ? give_number(count, cards_at_start(slots)) : result;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	return count_cards(deviceCount, __func__);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return count_cards(deviceCount, __func__);
}
