/* Links between cards: NVLinks to other cards and to switches, and what two share on the PCI bus.
 */
#include "call_frame.h"

#include <stdio.h>
#include <string.h>

enum { NO_SLOT = GPUSIM_CARDS, SWITCH = GPUSIM_CARDS + 1, SWITCHES_BUS = 0xc0, SWITCHES = 6 };

/* Where a card's NVLink ends: a slot, SWITCH, or NO_SLOT when it has no such link. */
static unsigned far_end(const struct gpusim_card *card, unsigned link)
{
	for (unsigned slot = 0; slot < GPUSIM_CARDS && card->nvlinks[slot]; slot++) {
		const unsigned links = (unsigned)(card->nvlinks[slot] - '0');
		if (link < links)
			return slot;
		link -= links;
	}
	return link < card->switch_links ? SWITCH : NO_SLOT;
}

/* Start a call on a link that the card has. */
static nvmlReturn_t enter_link(struct call *call, nvmlDevice_t device, unsigned link, unsigned *end,
			       const char *function)
{
	nvmlReturn_t result = enter_card(call, device, function);

	if (result != NVML_SUCCESS)
		return result;
	if (far_end(call->card, 0) == NO_SLOT)
		return leave(call, NVML_ERROR_NOT_SUPPORTED);
	*end = far_end(call->card, link);
	return *end == NO_SLOT ? leave(call, NVML_ERROR_INVALID_ARGUMENT) : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
				      nvmlEnableState_t *isActive)
{
	struct call call;
	unsigned end;
	nvmlReturn_t result = enter_link(&call, device, link, &end, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!isActive)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpusim_card *other = end < GPUSIM_CARDS ? &call.node->cards[end] : NULL;
	*isActive = !other || (other->present && !other->lost) ? NVML_FEATURE_ENABLED
							       : NVML_FEATURE_DISABLED;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
						 nvmlPciInfo_t *pci)
{
	struct call call;
	unsigned end;
	nvmlReturn_t result = enter_link(&call, device, link, &end, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!pci)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*pci = (nvmlPciInfo_t){.bus = SWITCHES_BUS + link % SWITCHES};
	if (end < GPUSIM_CARDS) {
		const struct gpusim_card *other = &call.node->cards[end];
		pci->domain = other->pci_domain;
		pci->bus = other->pci_bus;
		pci->device = other->pci_device;
		pci->pciDeviceId = other->pci_device_id;
	}
	(void)snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
		       pci->domain & 0xffffu, pci->bus & 0xffu, pci->device & 0xffu);
	(void)snprintf(pci->busId, sizeof(pci->busId), NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain,
		       pci->bus, pci->device);
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
						 nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType)
{
	struct call call;
	unsigned end;
	nvmlReturn_t result = enter_link(&call, device, link, &end, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!pNvLinkDeviceType)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	*pNvLinkDeviceType =
		end == SWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
					   nvmlNvLinkCapability_t capability,
					   unsigned int *capResult)
{
	struct call call;
	unsigned end;
	nvmlReturn_t result = enter_link(&call, device, link, &end, __func__);

	if (result != NVML_SUCCESS)
		return result;
	return leave(&call, give_number(capResult, capability != NVML_NVLINK_CAP_SLI_BRIDGE));
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
						 nvmlGpuTopologyLevel_t *pathInfo)
{
	struct call call;
	uint32_t slot;
	unsigned instance;
	nvmlReturn_t result = enter_card(&call, device1, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!pathInfo || !handle_place(device2, &slot, &instance) || instance != GPUSIM_INSTANCES)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	const struct gpusim_card *one = call.card, *other = &call.node->cards[slot];
	if (!other->present || other->lost)
		return leave(&call, NVML_ERROR_GPU_IS_LOST);
	if (!one->pci_socket || !other->pci_socket)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	if (one->pci_switch && one->pci_switch == other->pci_switch)
		*pathInfo = NVML_TOPOLOGY_SINGLE;
	else
		*pathInfo = one->pci_socket == other->pci_socket ? NVML_TOPOLOGY_HOSTBRIDGE
								 : NVML_TOPOLOGY_SYSTEM;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	struct call call;
	nvmlReturn_t result = enter_card(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (!call.card->clique)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	memset(info, 0, sizeof(*info));
	memset(info->clusterUuid, 0x5a, sizeof(info->clusterUuid));
	info->cliqueId = call.card->clique;
	info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
	return leave(&call, NVML_SUCCESS);
}
