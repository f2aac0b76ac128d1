/* Clocks in MHz. Streaming multiprocessors run at the graphics clock. */
#include "call_frame.h"

struct clocks {
	unsigned graphics, memory, video;
};

static nvmlReturn_t pick(const struct clocks *clocks, nvmlClockType_t type, unsigned *clock)
{
	switch (type) {
	case NVML_CLOCK_GRAPHICS:
	case NVML_CLOCK_SM:
		return give_number(clock, clocks->graphics);
	case NVML_CLOCK_MEM:
		return give_number(clock, clocks->memory);
	case NVML_CLOCK_VIDEO:
		return give_number(clock, clocks->video);
	default:
		return NVML_ERROR_INVALID_ARGUMENT;
	}
}

static nvmlReturn_t give_clock(nvmlDevice_t device, nvmlClockType_t type, bool largest,
			       unsigned *clock, const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	const struct gpusim_card *card = call.card;
	struct clocks now = {card->graphics_mhz, card->memory_mhz, card->video_mhz};
	struct clocks most = {card->graphics_max_mhz, card->memory_max_mhz, card->video_max_mhz};
	return leave(&call, pick(largest ? &most : &now, type, clock));
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
	return give_clock(device, type, false, clock, __func__);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
				       unsigned int *clock)
{
	return give_clock(device, type, true, clock, __func__);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType,
					    unsigned int *clockMHz)
{
	return give_clock(device, clockType, true, clockMHz, __func__);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType,
						   unsigned int *clockMHz)
{
	return give_clock(device, clockType, true, clockMHz, __func__);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t clockType,
						unsigned int *clockMHz)
{
	return give_clock(device, clockType, true, clockMHz, __func__);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t clockType,
				nvmlClockId_t clockId, unsigned int *clockMHz)
{
	return give_clock(device, clockType, clockId != NVML_CLOCK_ID_CURRENT, clockMHz, __func__);
}
