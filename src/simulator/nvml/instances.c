/*
 * GPU instances and compute instances: at most one of these in each of those. Both
 * kinds of handle are the MIG slice's own, seen as another type.
 */
#include "call_frame.h"

#include <stdio.h>
#include <string.h>

static nvmlDevice_t as_device(const void *handle)
{
	return (nvmlDevice_t)(uintptr_t)handle; // NOLINT(performance-no-int-to-ptr)
}

/* A call on an instance's handle: never a whole card. */
static nvmlReturn_t enter_instance(struct call *call, const void *handle, const char *function)
{
	nvmlReturn_t result = enter_place(call, as_device(handle), function);

	if (result == NVML_SUCCESS && !call->instance)
		return leave(call, NVML_ERROR_INVALID_ARGUMENT);
	return result;
}

/* A call on a card that is cut into slices. */
static nvmlReturn_t enter_cut_card(struct call *call, nvmlDevice_t device, const char *function)
{
	nvmlReturn_t result = enter_card(call, device, function);

	if (result == NVML_SUCCESS && !call->card->mig_enabled)
		return leave(call, NVML_ERROR_NOT_SUPPORTED);
	return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
				       nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
	struct call call;
	unsigned found = 0;
	nvmlReturn_t result = enter_cut_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!gpuInstances || !count)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		const struct gpusim_instance *instance = &call.card->instances[i];
		if (instance->present && instance->gpu_profile_id == profileId)
			gpuInstances[found++] = (nvmlGpuInstance_t)instance_handle(call.slot, i);
	}
	*count = found;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
					  nvmlGpuInstance_t *gpuInstance)
{
	struct call call;
	nvmlReturn_t result = enter_cut_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!gpuInstance)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		const struct gpusim_instance *instance = &call.card->instances[i];
		if (!instance->present || instance->gpu_instance != id)
			continue;
		*gpuInstance = (nvmlGpuInstance_t)instance_handle(call.slot, i);
		return leave(&call, NVML_SUCCESS);
	}
	return leave(&call, NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
	struct call call;
	nvmlReturn_t result = enter_instance(&call, gpuInstance, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*info = (nvmlGpuInstanceInfo_t){
		.device = device_handle(call.slot),
		.id = call.instance->gpu_instance,
		.profileId = call.instance->gpu_profile_id,
		.placement = {.start = call.instance->placement_start,
			      .size = call.instance->memory_slices},
	};
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance,
						unsigned int profileId,
						nvmlComputeInstance_t *computeInstances,
						unsigned int *count)
{
	struct call call;
	nvmlReturn_t result = enter_instance(&call, gpuInstance, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!computeInstances || !count)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*count = !call.instance->is_empty && call.instance->compute_profile == profileId ? 1 : 0;
	if (*count)
		computeInstances[0] = (nvmlComputeInstance_t)gpuInstance;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
						   nvmlComputeInstance_t *computeInstance)
{
	struct call call;
	nvmlReturn_t result = enter_instance(&call, gpuInstance, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!computeInstance)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (call.instance->is_empty || call.instance->compute_instance != id)
		return leave(&call, NVML_ERROR_NOT_FOUND);
	*computeInstance = (nvmlComputeInstance_t)gpuInstance;
	return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t give_compute_info(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info,
				      const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_instance(&call, handle, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*info = (nvmlComputeInstanceInfo_t){
		.device = device_handle(call.slot),
		.gpuInstance = (nvmlGpuInstance_t)handle,
		.id = call.instance->compute_instance,
		.profileId = call.instance->compute_profile,
		.placement = {.start = 0, .size = call.instance->compute_slices},
	};
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance,
					   nvmlComputeInstanceInfo_t *info)
{
	return give_compute_info(computeInstance, info, __func__);
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance,
					nvmlComputeInstanceInfo_t *info)
{
	return give_compute_info(computeInstance, info, __func__);
}
