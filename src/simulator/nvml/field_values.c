/* nvmlDeviceGetFieldValues: each field carries its own return code. */
#include "call_frame.h"

#include <time.h>

/* One field's value; NVML_ERROR_NOT_SUPPORTED for what is not simulated. */
static nvmlReturn_t answer(const struct gpusim_card *card, nvmlFieldValue_t *field)
{
	field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	switch (field->fieldId) {
	case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
		field->value.uiVal = card->recovery_action;
		return NVML_SUCCESS;
	case NVML_FI_DEV_ECC_CURRENT:
	case NVML_FI_DEV_ECC_PENDING:
		field->value.uiVal = card->ecc_enabled;
		return card->ecc_supported ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
	case NVML_FI_DEV_POWER_INSTANT:
	case NVML_FI_DEV_POWER_AVERAGE:
		field->value.uiVal = card->power_milliwatts;
		return NVML_SUCCESS;
	case NVML_FI_DEV_MEMORY_TEMP:
		field->value.uiVal = card->temperature_celsius;
		return NVML_SUCCESS;
	case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
		field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		field->value.ullVal = card->energy_millijoules;
		return NVML_SUCCESS;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
				      nvmlFieldValue_t *values)
{
	struct timespec now;
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!values || valuesCount < 0)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < valuesCount; i++) {
		values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = answer(call.card, &values[i]);
	}
	return leave(&call, NVML_SUCCESS);
}
