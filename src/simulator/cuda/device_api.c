/* What programs ask about devices. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuDeviceGetCount(int *count)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*count = driver.count;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *handle, int ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*handle = ordinal;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || length <= 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	const struct gpusim_instance *instance = device_instance(device);
	snprintf(name, (size_t)length, instance ? "%s MIG %s" : "%s", device_card(device)->name,
		 instance ? instance->profile : "");
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*bytes = device_total_bytes(device);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal)
{
	size_t all;
	CUresult result = cuDeviceTotalMem_v2(&all, ordinal);

	if (result == CUDA_SUCCESS && bytes)
		*bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
	return result == CUDA_SUCCESS && !bytes ? CUDA_ERROR_INVALID_VALUE : result;
}

/* The 16 bytes that the text behind "GPU-" or "MIG-" spells. */
static void spell_uuid(const char *text, CUuuid *uuid)
{
	unsigned char spelt[sizeof(uuid->bytes)] = {0};
	unsigned nibble = 0;

	for (text += strlen(text) > 4 ? 4 : 0; *text && nibble < 32; text++) {
		char digit[2] = {*text, '\0'};
		char *end;
		unsigned long value = strtoul(digit, &end, 16);

		if (end == digit)
			continue;
		spelt[nibble / 2] |= (unsigned char)(nibble % 2 ? value : value << 4);
		nibble++;
	}
	memcpy(uuid->bytes, spelt, sizeof(spelt));
}

static CUresult get_uuid(CUuuid *uuid, CUdevice ordinal, bool of_slice)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	const struct gpusim_instance *instance = of_slice ? device_instance(device) : NULL;
	spell_uuid(instance ? instance->uuid : device_card(device)->uuid, uuid);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	return get_uuid(uuid, device, false);
}

/* Of a MIG device, version 2 gives the slice's. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return get_uuid(uuid, device, true);
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	const struct gpusim_card *card = device_card(device);
	if (!text || length < 13)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	snprintf(text, (size_t)length, "%04x:%02x:%02x.0", card->pci_domain, card->pci_bus,
		 card->pci_device);
	return driver_leave(CUDA_SUCCESS);
}

/* "0000:3b:00.0" or, without the domain, "3b:00.0". */
static bool read_bus_id(const char *text, unsigned long place[3])
{
	unsigned count = 0;
	char *end;

	for (const char *at = text; count < 3; at = end + 1) {
		place[count++] = strtoul(at, &end, 16);
		if (end == at || *end != ':')
			break;
	}
	if (count == 2) {
		place[2] = place[1];
		place[1] = place[0];
		place[0] = 0;
	}
	return count >= 2;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *handle, const char *text)
{
	unsigned long place[3];
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !text || !read_bus_id(text, place))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < driver.count; i++) {
		const struct gpusim_card *card = device_card(&driver.devices[i]);

		if (card->pci_domain == place[0] && card->pci_bus == place[1] &&
		    card->pci_device == place[2]) {
			*handle = i;
			return driver_leave(CUDA_SUCCESS);
		}
	}
	return driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!major || !minor)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*major = (int)device_card(device)->compute_major;
	*minor = (int)device_card(device)->compute_minor;
	return driver_leave(CUDA_SUCCESS);
}
