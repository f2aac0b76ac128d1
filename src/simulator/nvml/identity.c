/* Who a card is: names, numbers, its place on the bus. */
#include "call_frame.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE * 2];
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (call.instance)
		(void)snprintf(text, sizeof(text), "%s MIG %s", call.card->name,
			       call.instance->profile);
	else
		(void)snprintf(text, sizeof(text), "%s", call.card->name);
	return leave(&call, give_text(name, length, text));
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	return leave(&call, give_text(uuid, length,
				      call.instance ? call.instance->uuid : call.card->uuid));
}

/* A text that only whole cards have; an empty one is not supported. */
static nvmlReturn_t give_card_text(nvmlDevice_t device, size_t offset, char *target,
				   unsigned length, const char *function)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	const char *text = (const char *)call.card + offset;
	return leave(&call, *text ? give_text(target, length, text) : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	return give_card_text(device, offsetof(struct gpusim_card, serial), serial, length,
			      __func__);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	return give_card_text(device, offsetof(struct gpusim_card, vbios), version, length,
			      __func__);
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *partNumber,
					  unsigned int length)
{
	return give_card_text(device, offsetof(struct gpusim_card, part_number), partNumber, length,
			      __func__);
}

/* The first two versions end before the long bus id: write no further. */
static nvmlReturn_t give_pci(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t bytes,
			     const char *function)
{
	nvmlPciInfo_t full = {0};
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (!pci)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpusim_card *card = call.card;
	full.domain = card->pci_domain;
	full.bus = card->pci_bus;
	full.device = card->pci_device;
	full.pciDeviceId = card->pci_device_id;
	full.pciSubSystemId = card->pci_subsystem_id;
	(void)snprintf(full.busIdLegacy, sizeof(full.busIdLegacy), "%04X:%02X:%02X.0",
		       full.domain & 0xffffu, full.bus & 0xffu, full.device & 0xffu);
	(void)snprintf(full.busId, sizeof(full.busId), NVML_DEVICE_PCI_BUS_ID_FMT, full.domain,
		       full.bus, full.device);
	memcpy(pci, &full, bytes);
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return give_pci(device, pci, sizeof(*pci), __func__);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return give_pci(device, pci, offsetof(nvmlPciInfo_t, busId), __func__);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return give_pci(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId), __func__);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!pci || pci->version != nvmlPciInfoExt_v1)
		return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	const struct gpusim_card *card = call.card;
	pci->domain = card->pci_domain;
	pci->bus = card->pci_bus;
	pci->device = card->pci_device;
	pci->pciDeviceId = card->pci_device_id;
	pci->pciSubSystemId = card->pci_subsystem_id;
	pci->baseClass = 3; /* display controller, 3D */
	pci->subClass = 2;
	(void)snprintf(pci->busId, sizeof(pci->busId), NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain,
		       pci->bus, pci->device);
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!major || !minor)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*major = (int)call.card->compute_major;
	*minor = (int)call.card->compute_minor;
	return leave(&call, NVML_SUCCESS);
}
