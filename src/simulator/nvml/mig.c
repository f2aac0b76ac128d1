/* MIG: the slices of a card, looked at. They are made by mig_cut.c, or by the node's profile. */
#include "call_frame.h"

#include <stdio.h>

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode,
				  unsigned int *pendingMode)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!currentMode || !pendingMode)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (!call.card->mig_capable)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	*currentMode = call.card->mig_enabled ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
	*pendingMode = call.card->mig_pending ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	return leave(&call, give_number(isMigDevice, call.instance != NULL));
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	return leave(&call, give_number(count, call.card->mig_capable ? GPUSIM_INSTANCES : 0));
}

/* Where the instance of that index is; GPUSIM_INSTANCES: none. In a container that was given
 * some instances of the card, they are counted from 0. */
static unsigned instance_at(const struct gpusim_card *card, unsigned index)
{
	unsigned hidden = 0;

	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		if (gpusim_is_mig_device(card, i) && !gpusim_sees_instance(card, i))
			hidden++;
		else if (i - hidden == index)
			return gpusim_is_mig_device(card, i) ? i : GPUSIM_INSTANCES;
	}
	return GPUSIM_INSTANCES;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
						 nvmlDevice_t *migDevice)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!migDevice || index >= GPUSIM_INSTANCES)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	unsigned place = instance_at(call.card, index);
	if (place == GPUSIM_INSTANCES)
		return leave(&call, NVML_ERROR_NOT_FOUND);
	*migDevice = instance_handle(call.slot, place);
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice,
							  nvmlDevice_t *device)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, migDevice, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!device || !call.instance)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*device = device_handle(call.slot);
	return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t give_id(nvmlDevice_t device, bool compute, unsigned *id, const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!call.instance)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	return leave(&call, give_number(id, compute ? call.instance->compute_instance
						    : call.instance->gpu_instance));
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return give_id(device, false, id, __func__);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return give_id(device, true, id, __func__);
}

static nvmlReturn_t give_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes,
				    const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!attributes)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (!call.instance)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	*attributes = (nvmlDeviceAttributes_t){
		.multiprocessorCount = call.instance->multiprocessors,
		.sharedCopyEngineCount = 1,
		.gpuInstanceSliceCount = gpu_slices(call.instance),
		.computeInstanceSliceCount = call.instance->compute_slices,
		.memorySizeMB = call.instance->memory_bytes / GPUSIM_MIB,
	};
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return give_attributes(device, attributes, __func__);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return give_attributes(device, attributes, __func__);
}
