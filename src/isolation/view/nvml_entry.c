/* The way into NVML's hooks. */
#include "view/nvml_entry.h"

#include "books/account.h"
#include "slice/slice.h"

enum entry nvml_enter(void)
{
	if (driver_is_inside())
		return ENTRY_PASS;
	enter_notice_fork();
	driver_load_nvml(true);
	switch (slice_state()) {
	case SLICE_OPEN:
		return ENTRY_OPEN;
	case SLICE_CLOSED:
		return ENTRY_CLOSED;
	default:
		return ENTRY_PASS;
	}
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
