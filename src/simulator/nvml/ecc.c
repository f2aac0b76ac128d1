/* Error correction: the mode, and counters that the node holds. */
#include "call_frame.h"

static nvmlEnableState_t state(uint32_t enabled)
{
	return enabled ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
				  nvmlEnableState_t *pending)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!current || !pending)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*current = *pending = state(call.card->ecc_enabled);
	return leave(&call, call.card->ecc_supported ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *defaultMode)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!defaultMode)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*defaultMode = state(call.card->ecc_supported);
	return leave(&call, call.card->ecc_supported ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

static nvmlReturn_t give_count(nvmlDevice_t device, nvmlMemoryErrorType_t type,
			       unsigned long long *count, const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (!call.card->ecc_enabled)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	*count = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? call.card->ecc_corrected
							  : call.card->ecc_uncorrected;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
					 nvmlEccCounterType_t counterType,
					 unsigned long long *eccCounts)
{
	(void)counterType;
	return give_count(device, errorType, eccCounts, __func__);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
					     nvmlEccCounterType_t counterType,
					     nvmlMemoryLocation_t locationType,
					     unsigned long long *count)
{
	(void)counterType;
	if (locationType != NVML_MEMORY_LOCATION_DEVICE_MEMORY &&
	    locationType != NVML_MEMORY_LOCATION_DRAM)
		return NVML_ERROR_NOT_SUPPORTED;
	return give_count(device, errorType, count, __func__);
}
