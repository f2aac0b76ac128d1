/* The way into NVML's hooks. */
#include "view/nvml_entry.h"

#include "books/account.h"
#include "slice/slice.h"

enum entry nvml_enter(void)
{
	if (!driver_is_inside())
		driver_load_nvml(true);
	return enter_slice();
}

/* Asked each time: handles may be given out anew, and it costs little beside the call itself. */
int nvml_card(nvmlDevice_t device)
{
	char uuid[96];

	if (!nvml.nvmlDeviceGetUUID ||
	    nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid)) != NVML_SUCCESS)
		return CARD_FOREIGN;
	return slice_card(uuid);
}
