/* The functions of numbers.def: one number of a whole card each. */
#include "events.h"
#include "call_frame.h"

#define NUMBER(function, type, supported, value)                                                   \
	nvmlReturn_t function(nvmlDevice_t device, type *number)                                   \
	{                                                                                          \
		struct call call;                                                                  \
		nvmlReturn_t result = enter_card(&call, device, __func__);                         \
                                                                                                   \
		if (result != NVML_SUCCESS)                                                        \
			return result;                                                             \
		const struct gpusim_card *card = call.card;                                        \
		(void)card;                                                                        \
		if (!number)                                                                       \
			return leave(&call, NVML_ERROR_INVALID_ARGUMENT);                          \
		if (!(supported))                                                                  \
			return leave(&call, NVML_ERROR_NOT_SUPPORTED);                             \
		*number = (type)(value);                                                           \
		return leave(&call, NVML_SUCCESS);                                                 \
	}

#include "numbers.def"
