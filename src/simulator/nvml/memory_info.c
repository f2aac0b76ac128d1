/* Memory of a card or of a MIG slice: total = reserved + used + free. */
#include "call_frame.h"

struct amounts {
	uint64_t total, reserved, used;
};

static struct amounts measure(const struct call *call)
{
	if (call->instance)
		return (struct amounts){
			.total = call->instance->memory_bytes,
			.used = gpusim_instance_used_bytes(call->node, call->slot,
							   call->instance->gpu_instance),
		};
	uint64_t taken = gpusim_card_used_bytes(call->node, call->slot);
	return (struct amounts){
		.total = call->card->memory_total_bytes,
		.reserved = call->card->memory_reserved_bytes,
		.used = taken - call->card->memory_reserved_bytes,
	};
}

static uint64_t free_bytes(const struct amounts *amounts)
{
	uint64_t taken = amounts->reserved + amounts->used;

	return taken < amounts->total ? amounts->total - taken : 0;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (call.card->memory_unified)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	struct amounts amounts = measure(&call);
	memory->total = amounts.total;
	memory->free = free_bytes(&amounts);
	memory->used = amounts.total - memory->free; /* reserved counts as used here */
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (memory->version != nvmlMemory_v2)
		return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	if (call.card->memory_unified)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	struct amounts amounts = measure(&call);
	memory->reserved = amounts.reserved;
	memory->free = free_bytes(&amounts);
	/* In a cgroup with a limit it is the cgroup's; version 1 is not said to be. */
	if (gpusim_own_limit(call.node, call.slot, &amounts.total, &amounts.used)) {
		const uint64_t left =
			amounts.used < amounts.total ? amounts.total - amounts.used : 0;
		memory->free = left < memory->free ? left : memory->free;
	}
	memory->total = amounts.total;
	memory->used = amounts.used;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!bar1Memory)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	/* The smallest power of two that covers the card, as large-BAR cards have it. */
	uint64_t bytes = 256u * GPUSIM_MIB;
	while (bytes < call.card->memory_total_bytes)
		bytes *= 2;
	bar1Memory->bar1Total = bytes;
	bar1Memory->bar1Used = 2u * GPUSIM_MIB;
	bar1Memory->bar1Free = bytes - bar1Memory->bar1Used;
	return leave(&call, NVML_SUCCESS);
}
