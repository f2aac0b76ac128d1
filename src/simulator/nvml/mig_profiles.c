/* What a card can be cut into, and a GPU instance of it again. */
#include "call_frame.h"

#include <stdio.h>

unsigned gpu_slices(const struct gpusim_instance *instance)
{
	return instance->gpu_slices ? instance->gpu_slices : instance->compute_slices;
}

unsigned compute_profile(unsigned slices)
{
	static const unsigned numbers[] = {
		[1] = NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
		[2] = NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
		[3] = NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE,
		[4] = NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE,
		[7] = NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE,
	};

	return slices < sizeof(numbers) / sizeof(numbers[0]) ? numbers[slices] : 0;
}

const struct gpusim_mig_profile *mig_profile(const struct gpusim_card *card, unsigned id)
{
	for (unsigned i = 0; i < GPUSIM_MIG_PROFILES; i++) {
		if (card->profiles[i].count && card->profiles[i].id == id)
			return &card->profiles[i];
	}
	return NULL;
}

/* By NVML's number of the profile, on a card in MIG mode. */
static nvmlReturn_t enter_profile(struct call *call, nvmlDevice_t device, unsigned number,
				  const struct gpusim_mig_profile **profile, const char *function)
{
	nvmlReturn_t result = enter_card(call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (number >= NVML_GPU_INSTANCE_PROFILE_COUNT)
		return leave(call, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; call->card->mig_enabled && i < GPUSIM_MIG_PROFILES; i++) {
		*profile = &call->card->profiles[i];
		if ((*profile)->count && (*profile)->number == number)
			return NVML_SUCCESS;
	}
	return leave(call, NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
						 nvmlGpuInstanceProfileInfo_t *info)
{
	struct call call;
	const struct gpusim_mig_profile *found;
	nvmlReturn_t result = enter_profile(&call, device, profile, &found, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*info = (nvmlGpuInstanceProfileInfo_t){
		.id = found->id,
		.sliceCount = found->compute_slices,
		.instanceCount = found->count,
		.multiprocessorCount = found->multiprocessors,
		.copyEngineCount = 1,
		.memorySizeMB = found->memory_bytes / GPUSIM_MIB,
	};
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
						  nvmlGpuInstanceProfileInfo_v2_t *info)
{
	struct call call;
	const struct gpusim_mig_profile *found;
	nvmlReturn_t result = enter_profile(&call, device, profile, &found, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!info || info->version != nvmlGpuInstanceProfileInfo_v2)
		return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	*info = (nvmlGpuInstanceProfileInfo_v2_t){
		.version = info->version,
		.id = found->id,
		.sliceCount = found->compute_slices,
		.instanceCount = found->count,
		.multiprocessorCount = found->multiprocessors,
		.copyEngineCount = 1,
		.memorySizeMB = found->memory_bytes / GPUSIM_MIB,
	};
	(void)snprintf(info->name, sizeof(info->name), "MIG %s", found->name);
	return leave(&call, NVML_SUCCESS);
}

/* A call on a GPU instance about a part of it; `slices` of the part. */
static nvmlReturn_t enter_part(struct call *call, nvmlGpuInstance_t instance, unsigned profile,
			       unsigned engine_profile, unsigned *slices, const char *function)
{
	nvmlDevice_t device =
		(nvmlDevice_t)(uintptr_t)instance; // NOLINT(performance-no-int-to-ptr)
	nvmlReturn_t result = enter_place(call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!call->instance || profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
		return leave(call, NVML_ERROR_INVALID_ARGUMENT);
	for (*slices = 1; *slices <= gpu_slices(call->instance); (*slices)++) {
		if (compute_profile(*slices) == profile && (*slices == 1 || profile) &&
		    engine_profile == NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
			return NVML_SUCCESS;
	}
	return leave(call, NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance,
							  unsigned int profile,
							  unsigned int engProfile,
							  nvmlComputeInstanceProfileInfo_t *info)
{
	struct call call;
	unsigned slices;
	nvmlReturn_t result =
		enter_part(&call, gpuInstance, profile, engProfile, &slices, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpusim_mig_profile *whole =
		mig_profile(call.card, call.instance->gpu_profile_id);
	*info = (nvmlComputeInstanceProfileInfo_t){
		.id = profile,
		.sliceCount = slices,
		.instanceCount = gpu_slices(call.instance) / slices,
		.multiprocessorCount =
			whole ? whole->multiprocessors * slices / gpu_slices(call.instance) : 0,
		.sharedCopyEngineCount = 1,
	};
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned int profile,
					      unsigned int engProfile,
					      nvmlComputeInstanceProfileInfo_v2_t *info)
{
	nvmlComputeInstanceProfileInfo_t plain;
	struct call call;
	unsigned slices;

	if (!info || info->version != nvmlComputeInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfo(gpuInstance, profile,
									   engProfile, &plain);
	if (result == NVML_SUCCESS)
		result = enter_part(&call, gpuInstance, profile, engProfile, &slices, __func__);
	if (result != NVML_SUCCESS)
		return result;
	*info = (nvmlComputeInstanceProfileInfo_v2_t){
		.version = info->version,
		.id = plain.id,
		.sliceCount = plain.sliceCount,
		.instanceCount = plain.instanceCount,
		.multiprocessorCount = plain.multiprocessorCount,
		.sharedCopyEngineCount = plain.sharedCopyEngineCount,
	};
	(void)snprintf(info->name, sizeof(info->name), "MIG %s", call.instance->profile);
	return leave(&call, NVML_SUCCESS);
}
