/* The driver's own limit of a cgroup's memory, set and read back through NVML of 615 and later. */
#include "hook.h"
#include "nvml_memory_limits.h"

#include <nvml.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* A driver may round what it is given; it never may to more. */
#define ROUNDED_BYTES (2ull * 1024 * 1024)

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const struct set_limits *limits);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get_limits *limits);

static void *library;

#define NVML(name, ...) (((__typeof__(name) *)find(#name))(__VA_ARGS__))
#define TRY(what, name, ...) require(NVML(name, __VA_ARGS__), what, #name)

static void *find(const char *name)
{
	void *function = dlsym(library, name);

	if (!function)
		refuse("the driver has no %s: it is older than 615", name);
	return function;
}

static void require(nvmlReturn_t result, const char *what, const char *name)
{
	if (result != NVML_SUCCESS)
		refuse("%s: %s answers %d (%s)", what, name, (int)result,
		       NVML(nvmlErrorString, result));
}

/* The host's own where the driver is the host's, else the one of a driver container. */
static void open_library(const char *root)
{
	static const char *const places[] = {"",
					     "/lib64",
					     "/usr/lib64",
					     "/usr/lib/x86_64-linux-gnu",
					     "/usr/lib/aarch64-linux-gnu",
					     "/usr/lib"};
	char path[HOOK_PATH_BYTES] = "libnvidia-ml.so.1";

	for (size_t i = 0; strcmp(root, "/") != 0 && i < sizeof(places) / sizeof(places[0]); i++) {
		(void)snprintf(path, sizeof(path), "%s%s/libnvidia-ml.so.1", root, places[i]);
		if (access(path, F_OK) == 0)
			break;
	}
	library = dlopen(path, RTLD_NOW);
	if (!library)
		refuse("%s", dlerror());
}

static bool is_held(const struct get_limits *found, uint64_t hard, uint64_t total)
{
	if (found->soft_bytes != 0 || found->hard_bytes > hard)
		return false;
	return hard == UINT64_MAX ? found->hard_bytes >= total
				  : hard - found->hard_bytes < ROUNDED_BYTES;
}

/* A limit of the card's total or more is none: the driver refuses what is above the total. */
static unsigned limit_card(const char *leaf, const struct limits_card *card, bool is_kept,
			   bool is_resized)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;

	TRY(card->uuid, nvmlDeviceGetHandleByUUID, card->uuid, &device);
	TRY(card->uuid, nvmlDeviceGetMemoryInfo, device, &memory);
	/* misc counts nothing without a limit, and what has grown may have to shrink. */
	const uint64_t whole = is_resized ? memory.total - 1 : UINT64_MAX;
	const uint64_t hard = card->memory_bytes >= memory.total ? whole : card->memory_bytes;
	const struct set_limits given = {leaf, 0, hard};
	struct get_limits found = {.name_space = leaf};
	const bool is_known =
		is_kept && NVML(nvmlDeviceGetMemoryLimits_v1, device, &found) == NVML_SUCCESS;
	const bool is_over = is_known && found.used_bytes > hard;

	if (is_known && is_held(&found, hard, memory.total))
		return is_over ? LIMIT_EXCEEDED : 0;
	const nvmlReturn_t result = NVML(nvmlDeviceSetMemoryLimits_v1, device, &given);
	if (is_over && result == NVML_ERROR_INVALID_ARGUMENT) /* misc; the present limit stays */
		return LIMIT_EXCEEDED;
	require(result, card->uuid, "nvmlDeviceSetMemoryLimits_v1");
	TRY(card->uuid, nvmlDeviceGetMemoryLimits_v1, device, &found);
	if (!is_held(&found, hard, memory.total))
		refuse("%s: %s has limits of %llu to %llu bytes after 0 to %llu were set",
		       card->uuid, leaf, found.soft_bytes, found.hard_bytes,
		       (unsigned long long)hard);
	return LIMIT_SET | (found.used_bytes > hard ? LIMIT_EXCEEDED : 0u);
}

static void start(const char *driver_root)
{
	open_library(driver_root);
	(void)find("nvmlDeviceSetMemoryLimits_v1");
	TRY(driver_root, nvmlInit_v2);
}

unsigned driver_limit(const char *driver_root, const char *leaf, const struct limits *limits,
		      bool is_kept)
{
	unsigned done = 0;

	start(driver_root);
	for (unsigned i = 0; i < limits->card_count; i++)
		if (limits->cards[i].memory_bytes != LIMITS_NO_CAP)
			done |= limit_card(leaf, &limits->cards[i], is_kept, limits->revision != 0);
	NVML(nvmlShutdown);
	return done;
}

/* With dmem the kernel lists the card as "nvidia/<PCI address>/vidmem"; misc shows nothing. */
static bool is_listed(const char *tree, nvmlDevice_t device)
{
	char path[HOOK_PATH_BYTES], line[256], name[96];
	nvmlPciInfo_t pci;
	bool found = false;

	TRY("PCI address", nvmlDeviceGetPciInfo_v3, device, &pci);
	(void)snprintf(name, sizeof(name), "nvidia/%s/vidmem", pci.busId);
	(void)snprintf(path, sizeof(path), "%s/dmem.capacity", tree);
	FILE *file = fopen(path, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = strncasecmp(line, name, strlen(name)) == 0;
	if (file)
		(void)fclose(file);
	return found;
}

static void probe_card(const char *tree, const char *leaf, nvmlDevice_t device, FILE *report)
{
	struct limits_card card = {.memory_bytes = 0};
	unsigned mig = 0, pending = 0;
	nvmlMemory_t memory = {0};

	TRY("a card", nvmlDeviceGetUUID, device, card.uuid, sizeof(card.uuid));
	const bool is_mig = NVML(nvmlDeviceGetMigMode, device, &mig, &pending) == NVML_SUCCESS &&
			    mig == NVML_DEVICE_MIG_ENABLE;
	const nvmlReturn_t told = NVML(nvmlDeviceGetMemoryInfo, device, &memory);

	if (is_mig || told != NVML_SUCCESS || !memory.total) {
		(void)fprintf(report, "device=%s reason=%s\n", card.uuid,
			      is_mig ? "it is in MIG mode" : "it has no video memory of its own");
		return;
	}
	card.memory_bytes = memory.total - 1;
	limit_card(leaf, &card, false, false);
	card.memory_bytes = memory.total;
	limit_card(leaf, &card, false, false);
	(void)fprintf(report, "device=%s backend=%s\n", card.uuid,
		      is_listed(tree, device) ? "dmem" : "misc");
}

void driver_probe(const char *driver_root, const char *tree, const char *leaf, FILE *report)
{
	char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
	unsigned count;

	start(driver_root);
	TRY(driver_root, nvmlSystemGetDriverVersion, version, sizeof(version));
	TRY(driver_root, nvmlDeviceGetCount_v2, &count);
	(void)fprintf(report, "driver=%s\n", version);
	for (unsigned i = 0; i < count; i++) {
		nvmlDevice_t device;

		TRY(driver_root, nvmlDeviceGetHandleByIndex_v2, i, &device);
		probe_card(tree, leaf, device, report);
	}
	NVML(nvmlShutdown);
}
