/* How many processes may use a card; libcuda.so.1 asks it at every context. */
#include "call_frame.h"

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (mode >= NVML_COMPUTEMODE_COUNT)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	/* EXCLUSIVE_THREAD is gone from drivers; a card in MIG mode has none. */
	if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || call.card->mig_enabled)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	call.card->compute_mode = mode;
	gpusim_announce(call.node);
	return leave(&call, NVML_SUCCESS);
}
