/*
 * Cutting a card through NVML: MIG mode, GPU instances, and in each at most one compute
 * instance. Nothing is destroyed, and no mode changed, while a process uses it.
 */
#include "call_frame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_used(struct gpusim_node *node, uint32_t card, const struct gpusim_instance *instance)
{
	gpusim_processes_reap(node);
	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &node->processes[slot];
		if (process->used && process->card == card &&
		    (!instance || process->gpu_instance == instance->gpu_instance))
			return true;
	}
	return false;
}

static bool has_instances(const struct gpusim_card *card)
{
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		if (card->instances[i].present)
			return true;
	}
	return false;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
				  nvmlReturn_t *activationStatus)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!activationStatus || mode > NVML_DEVICE_MIG_ENABLE)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (!call.card->mig_capable)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	if (mode == NVML_DEVICE_MIG_DISABLE && has_instances(call.card))
		return leave(&call, NVML_ERROR_IN_USE);
	call.card->mig_pending = mode == NVML_DEVICE_MIG_ENABLE;
	*activationStatus = NVML_SUCCESS;
	if (call.card->mig_enabled != call.card->mig_pending && is_used(call.node, call.slot, NULL))
		*activationStatus = NVML_ERROR_IN_USE;
	else
		call.card->mig_enabled = call.card->mig_pending;
	atomic_fetch_add(&call.node->generation, 1u);
	gpusim_announce(call.node);
	return leave(&call, NVML_SUCCESS);
}

/* Whether the memory from `start` on is free, and as much compute as the profile has. */
static bool has_room(const struct gpusim_card *card, const struct gpusim_mig_profile *profile,
		     unsigned start)
{
	unsigned slices = profile->compute_slices;

	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		const struct gpusim_instance *other = &card->instances[i];
		if (!other->present)
			continue;
		slices += gpu_slices(other);
		if (start < other->placement_start + other->memory_slices &&
		    other->placement_start < start + profile->memory_slices)
			return false;
	}
	return slices <= GPUSIM_COMPUTE_SLICES;
}

/* A call about cutting a profile off a card in MIG mode. */
static nvmlReturn_t enter_cut(struct call *call, nvmlDevice_t device, unsigned id,
			      const struct gpusim_mig_profile **profile, const char *function)
{
	nvmlReturn_t result = enter_card(call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!call->card->mig_enabled)
		return leave(call, NVML_ERROR_NOT_SUPPORTED);
	*profile = mig_profile(call->card, id);
	return *profile ? NVML_SUCCESS : leave(call, NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId,
						       unsigned int *count)
{
	struct call call;
	unsigned free = 0;
	const struct gpusim_mig_profile *profile;
	nvmlReturn_t result = enter_cut(&call, device, profileId, &profile, __func__);

	if (result != NVML_SUCCESS)
		return result;
	for (unsigned i = 0; i < profile->count; i++)
		free += has_room(call.card, profile, i * profile->memory_slices);
	return leave(&call, give_number(count, free));
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device,
							   unsigned int profileId,
							   nvmlGpuInstancePlacement_t *placements,
							   unsigned int *count)
{
	struct call call;
	const struct gpusim_mig_profile *profile;
	nvmlReturn_t result = enter_cut(&call, device, profileId, &profile, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; placements && i < profile->count; i++)
		placements[i] = (nvmlGpuInstancePlacement_t){
			.start = i * profile->memory_slices,
			.size = profile->memory_slices,
		};
	*count = profile->count;
	return leave(&call, NVML_SUCCESS);
}

/* FNV-1a: equal nodes that are cut alike have equal UUIDs. */
static uint64_t hashed(const char *text, uint64_t hash)
{
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 1099511628211u;
	return hash;
}

static void name_instance(struct gpusim_card *card, struct gpusim_instance *instance)
{
	char seed[128];

	(void)snprintf(seed, sizeof(seed), "%s/%u", card->uuid, ++card->instances_made);
	const uint64_t high = hashed(seed, 14695981039346656037u), low = hashed(seed, high);
	(void)snprintf(instance->uuid, sizeof(instance->uuid),
		       "MIG-%08" PRIx64 "-%04" PRIx64 "-5%03" PRIx64 "-8%03" PRIx64 "-%012" PRIx64,
		       high >> 32, (high >> 16) & 0xffffu, high & 0xfffu, low >> 52,
		       low & 0xffffffffffffu);
}

static nvmlReturn_t cut(struct call *call, const struct gpusim_mig_profile *profile, unsigned start,
			nvmlGpuInstance_t *made)
{
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		struct gpusim_instance *instance = &call->card->instances[i];
		if (instance->present)
			continue;
		*instance = (struct gpusim_instance){
			.present = 1,
			.is_empty = 1,
			.gpu_instance = i + 7,
			.gpu_profile = profile->number,
			.gpu_profile_id = profile->id,
			.gpu_slices = profile->compute_slices,
			.memory_slices = profile->memory_slices,
			.placement_start = start,
			.memory_bytes = profile->memory_bytes,
		};
		*made = (nvmlGpuInstance_t)instance_handle(call->slot, i);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned id,
			   const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *made,
			   const char *function)
{
	struct call call;
	const struct gpusim_mig_profile *profile;
	nvmlReturn_t result = enter_cut(&call, device, id, &profile, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!made || (place && place->size != profile->memory_slices))
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned i = 0; i < profile->count; i++) {
		const unsigned start = i * profile->memory_slices;
		if ((!place || place->start == start) && has_room(call.card, profile, start))
			return leave(&call, cut(&call, profile, start, made));
	}
	return leave(&call, NVML_ERROR_INSUFFICIENT_RESOURCES);
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId,
					 nvmlGpuInstance_t *gpuInstance)
{
	return create(device, profileId, NULL, gpuInstance, __func__);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
						      const nvmlGpuInstancePlacement_t *placement,
						      nvmlGpuInstance_t *gpuInstance)
{
	if (!placement)
		return NVML_ERROR_INVALID_ARGUMENT;
	return create(device, profileId, placement, gpuInstance, __func__);
}

static nvmlReturn_t enter_instance(struct call *call, const void *handle, const char *function)
{
	nvmlDevice_t device = (nvmlDevice_t)(uintptr_t)handle; // NOLINT(performance-no-int-to-ptr)
	nvmlReturn_t result = enter_place(call, device, function);

	if (result == NVML_SUCCESS && !call->instance)
		return leave(call, NVML_ERROR_INVALID_ARGUMENT);
	return result;
}

static nvmlReturn_t changed(struct call *call)
{
	atomic_fetch_add(&call->node->generation, 1u);
	gpusim_announce(call->node);
	return leave(call, NVML_SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
	struct call call;
	nvmlReturn_t result = enter_instance(&call, gpuInstance, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!call.instance->is_empty)
		return leave(&call, NVML_ERROR_IN_USE);
	call.instance->present = 0;
	return changed(&call);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance,
						  unsigned int profileId,
						  nvmlComputeInstance_t *computeInstance)
{
	struct call call;
	nvmlComputeInstanceProfileInfo_t part;
	nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfo(
		gpuInstance, profileId, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &part);

	if (result == NVML_SUCCESS)
		result = enter_instance(&call, gpuInstance, __func__);
	if (result != NVML_SUCCESS)
		return result;
	const struct gpusim_mig_profile *whole =
		mig_profile(call.card, call.instance->gpu_profile_id);
	if (!computeInstance || !whole)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (!call.instance->is_empty)
		return leave(&call, NVML_ERROR_INSUFFICIENT_RESOURCES);
	struct gpusim_instance *instance = call.instance;
	instance->is_empty = 0;
	instance->compute_profile = profileId;
	instance->compute_slices = part.sliceCount;
	instance->multiprocessors = part.multiprocessorCount;
	if (part.sliceCount == instance->gpu_slices)
		(void)snprintf(instance->profile, sizeof(instance->profile), "%s", whole->name);
	else
		(void)snprintf(instance->profile, sizeof(instance->profile), "%uc.%s",
			       part.sliceCount, whole->name);
	name_instance(call.card, instance);
	*computeInstance = (nvmlComputeInstance_t)gpuInstance;
	return changed(&call);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
	struct call call;
	nvmlReturn_t result = enter_instance(&call, computeInstance, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (call.instance->is_empty)
		return leave(&call, NVML_ERROR_NOT_FOUND);
	if (is_used(call.node, call.slot, call.instance))
		return leave(&call, NVML_ERROR_IN_USE);
	call.instance->gpu_slices = gpu_slices(call.instance);
	call.instance->is_empty = 1;
	call.instance->compute_slices = 0;
	memset(call.instance->uuid, 0, sizeof(call.instance->uuid));
	memset(call.instance->profile, 0, sizeof(call.instance->profile));
	return changed(&call);
}
