/* The driver's own limit of a cgroup's memory, set and read back through NVML of 615 and later. */
#include "hook.h"

#include <nvml.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A driver may round what it is given; it never may to more. */
#define ROUNDED_BYTES (2ull * 1024 * 1024)

/* As nvml.h of CUDA 13.4 has them: 24 and 32 bytes, without a version. */
struct set_limits {
	const char *name_space;
	unsigned long long soft_bytes, hard_bytes;
};

struct get_limits {
	const char *name_space;
	unsigned long long soft_bytes, hard_bytes, used_bytes;
};

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
	static const char *const places[] = {"", "/usr/lib64", "/usr/lib/x86_64-linux-gnu",
					     "/usr/lib/aarch64-linux-gnu", "/usr/lib"};
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

static void limit_card(const char *leaf, const struct limits_card *card)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;

	TRY(card->uuid, nvmlDeviceGetHandleByUUID, card->uuid, &device);
	TRY(card->uuid, nvmlDeviceGetMemoryInfo, device, &memory);
	/* The driver refuses a limit above the card's total. */
	const bool is_whole = card->memory_bytes >= memory.total;
	const uint64_t hard = is_whole ? UINT64_MAX : card->memory_bytes;
	const struct set_limits given = {leaf, 0, hard};
	struct get_limits found = {.name_space = leaf};

	TRY(card->uuid, nvmlDeviceSetMemoryLimits_v1, device, &given);
	TRY(card->uuid, nvmlDeviceGetMemoryLimits_v1, device, &found);
	if (found.soft_bytes != 0 || found.hard_bytes > hard ||
	    (is_whole ? found.hard_bytes < memory.total : hard - found.hard_bytes >= ROUNDED_BYTES))
		refuse("%s: %s has limits of %llu to %llu bytes after 0 to %llu were set",
		       card->uuid, leaf, found.soft_bytes, found.hard_bytes,
		       (unsigned long long)hard);
}

void driver_limit(const char *driver_root, const char *leaf, const struct limits *limits)
{
	open_library(driver_root);
	TRY(driver_root, nvmlInit_v2);
	for (unsigned i = 0; i < limits->card_count; i++)
		if (limits->cards[i].memory_bytes != LIMITS_NO_CAP)
			limit_card(leaf, &limits->cards[i]);
	NVML(nvmlShutdown);
}
