/* From index, UUID, serial or PCI address to a handle, and back to an index. */
#include "call_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef bool (*matcher)(const struct gpusim_card *card, const char *text);

/* The handle of a card we may see; a lost one answers for itself only. */
static nvmlReturn_t give_card(struct call *call, uint32_t slot, nvmlDevice_t *device)
{
	const struct gpusim_card *card = &call->node->cards[slot];

	if (!card->present || card->lost)
		return NVML_ERROR_GPU_IS_LOST;
	*device = device_handle(slot);
	return NVML_SUCCESS;
}

static nvmlReturn_t handle_by_index(unsigned index, nvmlDevice_t *device, const char *function)
{
	uint32_t slots[GPUSIM_CARDS];
	struct call call;
	nvmlReturn_t result = enter(&call, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!device || index >= cards_at_start(slots))
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	return leave(&call, give_card(&call, slots[index], device));
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	return handle_by_index(index, device, __func__);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return handle_by_index(index, device, __func__);
}

static nvmlReturn_t find_card(const char *text, nvmlDevice_t *device, matcher matches,
			      const char *function)
{
	uint32_t slots[GPUSIM_CARDS];
	struct call call;
	nvmlReturn_t result = enter(&call, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!text || !device)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	unsigned count = cards_at_start(slots);
	for (unsigned index = 0; index < count; index++) {
		if (matches(&call.node->cards[slots[index]], text))
			return leave(&call, give_card(&call, slots[index], device));
	}
	return leave(&call, NVML_ERROR_NOT_FOUND);
}

static bool has_uuid(const struct gpusim_card *card, const char *text)
{
	return strcmp(card->uuid, text) == 0;
}

static bool has_serial(const struct gpusim_card *card, const char *text)
{
	return strcmp(card->serial, text) == 0;
}

/* "0000:3B:00.0", "00000000:3b:00.0" and "3b:00.0" name the same slot. */
static bool has_bus_id(const struct gpusim_card *card, const char *text)
{
	unsigned long parts[3] = {0}; /* domain, bus, device: the last ones given */
	char *end;

	for (unsigned i = 0; i < 3; i++) {
		parts[0] = parts[1];
		parts[1] = parts[2];
		parts[2] = strtoul(text, &end, 16);
		if (end == text || (*end && *end != ':' && *end != '.'))
			return false;
		if (*end != ':')
			return i > 0 && card->pci_domain == parts[0] && card->pci_bus == parts[1] &&
			       card->pci_device == parts[2];
		text = end + 1;
	}
	return false;
}

/* A MIG slice by its own UUID. */
static nvmlReturn_t find_instance(const char *uuid, nvmlDevice_t *device)
{
	uint32_t slots[GPUSIM_CARDS];
	struct call call;
	nvmlReturn_t result = enter(&call, "nvmlDeviceGetHandleByUUID");

	if (result != NVML_SUCCESS)
		return result;
	unsigned count = cards_at_start(slots);
	for (unsigned place = 0; place < count * GPUSIM_INSTANCES; place++) {
		uint32_t slot = slots[place / GPUSIM_INSTANCES];
		unsigned number = place % GPUSIM_INSTANCES;
		const struct gpusim_card *card = &call.node->cards[slot];
		if (!gpusim_is_mig_device(card, number) || !gpusim_sees_instance(card, number) ||
		    strcmp(card->instances[number].uuid, uuid) != 0)
			continue;
		result = give_card(&call, slot, device);
		if (result == NVML_SUCCESS)
			*device = instance_handle(slot, number);
		return leave(&call, result);
	}
	return leave(&call, NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (uuid && device && strncmp(uuid, "MIG-", 4) == 0)
		return find_instance(uuid, device);
	return find_card(uuid, device, has_uuid, __func__);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	struct gpusim_node *node;
	nvmlReturn_t result = ready(&node, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!uuid || uuid->version != nvmlUUID_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (uuid->type != NVML_UUID_TYPE_ASCII)
		return NVML_ERROR_NOT_SUPPORTED;
	return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	return find_card(serial, device, has_serial, __func__);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	return find_card(pciBusId, device, has_bus_id, __func__);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return find_card(pciBusId, device, has_bus_id, __func__);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	uint32_t slots[GPUSIM_CARDS];
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (call.instance)
		return leave(&call,
			     give_number(index, (unsigned)(call.instance - call.card->instances)));
	unsigned count = cards_at_start(slots);
	for (unsigned place = 0; place < count; place++) {
		if (slots[place] == call.slot)
			return leave(&call, give_number(index, place));
	}
	return leave(&call, NVML_ERROR_NOT_FOUND);
}
