/* What changes while a card works: utilisation, temperature, clocks, power. */
#include "call_frame.h"

#define FRESH_NS 1000000000ull

/* The engine's figure while it is fresh, or the one set by hand: the larger. */
static unsigned share(const struct call *call, unsigned engine, unsigned by_hand)
{
	uint64_t seen_ns = call->card->engine_seen_ns;
	bool fresh = seen_ns && sample_age_ns(call->node, seen_ns) <= FRESH_NS;
	unsigned percent = fresh && engine > by_hand ? engine : by_hand;

	return percent > 100u ? 100u : percent;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!utilization)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpusim_card *card = call.card;
	if (card->mig_enabled)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	utilization->gpu = share(&call, card->engine_gpu_percent, card->gpu_percent);
	utilization->memory = share(&call, card->engine_memory_percent, card->memory_percent);
	return leave(&call, NVML_SUCCESS);
}

/* One sample, the present figure: the simulated card keeps no history. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
				  unsigned long long lastSeenTimeStamp,
				  nvmlValueType_t *sampleValType, unsigned int *sampleCount,
				  nvmlSample_t *samples)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!sampleValType || !sampleCount)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpusim_card *card = call.card;
	if (card->mig_enabled ||
	    (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_TOTAL_POWER_SAMPLES))
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	uint64_t now = wall_microseconds(0);
	if (now <= lastSeenTimeStamp)
		return leave(&call, NVML_ERROR_NOT_FOUND);
	*sampleValType = NVML_VALUE_TYPE_UNSIGNED_INT;
	if (samples && *sampleCount >= 1) {
		samples[0].timeStamp = now;
		samples[0].sampleValue.uiVal =
			type == NVML_TOTAL_POWER_SAMPLES
				? card->power_milliwatts
				: share(&call, card->engine_gpu_percent, card->gpu_percent);
	}
	*sampleCount = 1;
	return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t give_engine(nvmlDevice_t device, unsigned *utilization, unsigned *period,
				const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!utilization || !period)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (call.card->mig_enabled)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	*utilization = 0;
	*period = 167000; /* one sixth of a second, as the driver samples */
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
					     unsigned int *samplingPeriodUs)
{
	return give_engine(device, utilization, samplingPeriodUs, __func__);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
					     unsigned int *samplingPeriodUs)
{
	return give_engine(device, utilization, samplingPeriodUs, __func__);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType,
				      unsigned int *temp)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (sensorType != NVML_TEMPERATURE_GPU)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	return leave(&call, give_number(temp, call.card->temperature_celsius));
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!temperature || temperature->version != nvmlTemperature_v1)
		return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	temperature->temperature = (int)call.card->temperature_celsius;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
					       nvmlTemperatureThresholds_t thresholdType,
					       unsigned int *temp)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (thresholdType == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
		return leave(&call, give_number(temp, call.card->temperature_shutdown));
	if (thresholdType == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
		return leave(&call, give_number(temp, call.card->temperature_slowdown));
	return leave(&call, NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (fan >= call.card->fans)
		return leave(&call, call.card->fans ? NVML_ERROR_INVALID_ARGUMENT
						    : NVML_ERROR_NOT_SUPPORTED);
	return leave(&call, give_number(speed, call.card->fan_percent));
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
							  unsigned int *minLimit,
							  unsigned int *maxLimit)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!minLimit || !maxLimit)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*minLimit = call.card->power_min_milliwatts;
	*maxLimit = call.card->power_max_milliwatts;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
					 unsigned int *value)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	(void)counter;
	return leave(&call, give_number(value, 0));
}
