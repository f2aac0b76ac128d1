/* Cards are known by UUID: device numbers change with CUDA_VISIBLE_DEVICES and by process. */
#include "driver/cards.h"

#include "driver/context_scope.h"
#include "driver/driver.h"
#include "slice/slice.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

atomic_bool green_was_made;

enum { DEVICES = 64, NOT_ASKED = 0 };

/* Answer + 2, so that zero means not asked; -1 (foreign) is kept as 1. */
static _Atomic int8_t known[DEVICES];

/* MIG devices have a UUID of their own only since cuDeviceGetUuid_v2. */
static CUresult uuid_of(CUdevice device, CUuuid *uuid)
{
	if (cuda.cuDeviceGetUuid_v2)
		return cuda.cuDeviceGetUuid_v2(uuid, device);
	return cuda.cuDeviceGetUuid ? cuda.cuDeviceGetUuid(uuid, device) : CUDA_ERROR_NOT_SUPPORTED;
}

static int card_of_uuid(const CUuuid *uuid)
{
	static const char *const prefixes[] = {"GPU", "MIG"};
	char text[LIMITS_UUID_BYTES];
	const unsigned char *b = (const unsigned char *)uuid->bytes;

	for (unsigned i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
		(void)snprintf(text, sizeof(text),
			       "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
			       "%02x%02x%02x%02x%02x%02x",
			       prefixes[i], b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
			       b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
		const int card = slice_card(text);

		if (card >= 0)
			return card;
	}
	return CARD_FOREIGN;
}

/* Only what the driver has said is remembered: before cuInit, for one, it says nothing. */
CUresult card_find(CUdevice device, int *card)
{
	const bool has_place = device >= 0 && device < DEVICES;
	const int8_t answer =
		has_place ? atomic_load_explicit(&known[device], memory_order_relaxed) : NOT_ASKED;
	CUuuid uuid;

	if (answer != NOT_ASKED) {
		*card = answer - 2;
		return CUDA_SUCCESS;
	}
	const CUresult result = uuid_of(device, &uuid);

	if (result != CUDA_SUCCESS)
		return result;
	*card = card_of_uuid(&uuid);
	if (has_place)
		atomic_store_explicit(&known[device], (int8_t)(*card + 2), memory_order_relaxed);
	return CUDA_SUCCESS;
}

int card_of_device(CUdevice device)
{
	int card;

	return card_find(device, &card) == CUDA_SUCCESS ? card : CARD_FOREIGN;
}

CUresult card_current(int *card)
{
	CUdevice device;
	const CUresult result = cuda.cuCtxGetDevice(&device);

	return result == CUDA_SUCCESS ? card_find(device, card) : result;
}

CUresult device_of_stream(CUstream stream, CUdevice *device)
{
	if (stream_is_default(stream))
		return cuda.cuCtxGetDevice(device);
	if (cuda.cuStreamGetDevice && cuda.cuStreamGetDevice(stream, device) == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	const struct context_scope scope = scope_stream(stream);
	const CUresult result = cuda.cuCtxGetDevice(device);

	scope_end(scope);
	return result;
}

bool location_is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult device_of_location(const CUmemLocation *location, CUdevice *device)
{
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return cuda.cuCtxGetDevice(device);
	*device = location->id;
	return CUDA_SUCCESS;
}
