/*
 * gpu-selftest: is the cap of this container effective? Mounted beside the
 * library; exits 0 only if every view and an allocation say so, else names what
 * disagrees. Where the driver enforces too, a child asks it past the library.
 * Of a share of the card's time it says that it was not checked.
 *
 *	0 effective, 1 not effective, 2 no slice here, 3 cannot tell
 */
/* One thread: NOLINTBEGIN(concurrency-mt-unsafe) */
#include "slice/limits.h"

#include "driver/api.h"
#include "driver/libc_symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1024ull * 1024)

/* Views may differ by what the driver rounds to. */
#define TOLERANCE (2 * MIB)

enum { EFFECTIVE, NOT_EFFECTIVE, NO_SLICE, CANNOT_TELL };

static void *cuda_library, *nvml_library;
static void *(*lookup)(void *library, const char *name) = dlsym; /* the library answers it */
static int verdict = EFFECTIVE;
static bool is_unchecked; /* a card's only cap is one that this program cannot check */

#define CUDA(name, ...) (((__typeof__(name) *)find(cuda_library, #name))(__VA_ARGS__))
#define NVML(name, ...) (((__typeof__(name) *)find(nvml_library, #name))(__VA_ARGS__))

static void *find(void *library, const char *name)
{
	void *function = lookup(library, name);

	if (!function) {
		(void)printf("cannot tell: the driver has no %s\n", name);
		exit(CANNOT_TELL);
	}
	return function;
}

__attribute__((format(printf, 2, 3))) static void check(bool holds, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)fputs(holds ? "ok      " : "FAILED  ", stdout);
	(void)vprintf(format, arguments);
	(void)putchar('\n');
	va_end(arguments);
	if (!holds)
		verdict = NOT_EFFECTIVE;
}

static bool is_near(uint64_t a, uint64_t b)
{
	return (a > b ? a - b : b - a) <= TOLERANCE;
}

static void read_limits(struct limits *limits)
{
	static char text[LIMITS_FILE_BYTES];
	char path[300], reason[160];
	const char *root = "/run/gpu-device-plugin";

	if (access("/run/gpu-device-plugin/config", F_OK) != 0 && getenv("GPUSLICE_ROOT"))
		root = getenv("GPUSLICE_ROOT");
	(void)snprintf(path, sizeof(path), "%s/config/limits", root);
	FILE *file = fopen(path, "re");

	if (!file) {
		(void)printf("no slice: %s: %s\n", path, strerror(errno));
		exit(NO_SLICE);
	}
	const size_t length = fread(text, 1, sizeof(text), file);

	(void)fclose(file);
	if (!limits_parse(text, length, limits, reason, sizeof(reason))) {
		(void)printf("FAILED  %s, %s\n", path, reason);
		exit(NOT_EFFECTIVE);
	}
}

/* The figures of CUDA and NVML for one card against its line, or the card where that is smaller. */
static void check_views(const struct limits_card *card, CUdevice device)
{
	nvmlDevice_t handle;
	nvmlMemory_t memory;
	size_t total = 0, free_bytes = 0, info_total = 0;

	CUDA(cuDeviceTotalMem_v2, &total, device);
	CUDA(cuMemGetInfo_v2, &free_bytes, &info_total);
	const uint64_t wanted = total < card->memory_bytes ? total : card->memory_bytes;

	check(is_near(total, wanted), "%s cuDeviceTotalMem: %llu MiB of %llu MiB", card->uuid,
	      total / MIB, card->memory_bytes / MIB);
	check(is_near(info_total, wanted), "%s cuMemGetInfo: total %llu MiB", card->uuid,
	      info_total / MIB);
	check(free_bytes <= info_total, "%s cuMemGetInfo: free %llu MiB", card->uuid,
	      free_bytes / MIB);
	if (!nvml_library || NVML(nvmlInit_v2) != NVML_SUCCESS ||
	    NVML(nvmlDeviceGetHandleByUUID, card->uuid, &handle) != NVML_SUCCESS ||
	    NVML(nvmlDeviceGetMemoryInfo, handle, &memory) != NVML_SUCCESS) {
		check(nvml_library == NULL, "%s NVML answers", card->uuid);
		return;
	}
	/* Of a whole card NVML counts more than CUDA: what the driver keeps for itself. */
	const bool is_whole = !is_near(total, card->memory_bytes);

	check(is_near(memory.total, wanted) ||
		      (is_whole && memory.total > wanted && memory.total <= card->memory_bytes),
	      "%s NVML memory: total %llu MiB", card->uuid, memory.total / MIB);
	check(is_whole || is_near(memory.free, free_bytes),
	      "%s NVML memory: free %llu MiB, CUDA says %llu MiB", card->uuid, memory.free / MIB,
	      free_bytes / MIB);
}

/* One byte more than the slice must be refused, whatever the views say. */
static void check_refusal(const struct limits_card *card, const char *enforcer)
{
	CUdeviceptr pointer = 0;
	const CUresult result = CUDA(cuMemAlloc_v2, &pointer, card->memory_bytes + 1);

	check(result == CUDA_ERROR_OUT_OF_MEMORY, "%s cuMemAlloc of a byte too many: %s by the %s",
	      card->uuid, result == CUDA_SUCCESS ? "given" : "refused", enforcer);
	if (result == CUDA_SUCCESS)
		CUDA(cuMemFree_v2, pointer);
}

static bool device_of(const struct limits_card *card, CUdevice *device)
{
	int count = 0;

	CUDA(cuDeviceGetCount, &count);
	for (int i = 0; i < count; i++) {
		CUuuid uuid = {{0}};
		char text[33], wanted[33] = "";

		CUDA(cuDeviceGet, device, i);
		/* MIG devices have their own UUID only in the second version. */
		if (lookup(cuda_library, "cuDeviceGetUuid_v2"))
			CUDA(cuDeviceGetUuid_v2, &uuid, *device);
		else
			CUDA(cuDeviceGetUuid, &uuid, *device);
		for (int j = 0; j < 16; j++)
			(void)snprintf(text + (size_t)j * 2, 3, "%02x",
				       (unsigned char)uuid.bytes[j]);
		for (const char *c = card->uuid + 4; *c; c++)
			if (*c != '-')
				strncat(wanted, c, 1);
		if (strcasecmp(text, wanted) == 0)
			return true;
	}
	return false;
}

/* HMM or ATS: the driver brings memory of malloc to the card, and tells nobody. */
static void tell_pageable(const struct limits_card *card, CUdevice device)
{
	int is_reachable = 0;

	if (CUDA(cuDeviceGetAttribute, &is_reachable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
		 device) == CUDA_SUCCESS &&
	    is_reachable)
		(void)printf(
			"not capped  %s memory of malloc: the card reaches it (HMM or ATS), and "
			"what of it is there is not counted\n",
			card->uuid);
}

/* Whether there is a context on the card to ask in. */
static bool enter_card(const struct limits_card *card, CUdevice *device)
{
	CUcontext context = NULL;

	if (!device_of(card, device)) {
		check(false, "%s is not among the devices that CUDA shows", card->uuid);
		return false;
	}
	if (card->memory_bytes == LIMITS_NO_CAP)
		return false;
	const CUresult made = CUDA(cuDevicePrimaryCtxRetain, &context, *device);

	if (made == CUDA_ERROR_OUT_OF_MEMORY) {
		check(true, "%s is full: no context fits", card->uuid);
		return false;
	}
	check(made == CUDA_SUCCESS, "%s cuDevicePrimaryCtxRetain answers %d", card->uuid,
	      (int)made);
	if (made == CUDA_SUCCESS)
		CUDA(cuCtxSetCurrent, context);
	return made == CUDA_SUCCESS;
}

static void check_card(const struct limits_card *card, enum limits_policy policy)
{
	CUdevice device = 0;

	if (card->core_percent < 100) {
		(void)printf("not checked  %s compute: %u %%, policy %s, by %s\n", card->uuid,
			     card->core_percent, limits_policy_name(policy),
			     policy == POLICY_NATIVE ? "nobody" : "the library");
		is_unchecked = is_unchecked || card->memory_bytes == LIMITS_NO_CAP;
	}
	if (!enter_card(card, &device))
		return;
	tell_pageable(card, device);
	check_views(card, device);
	check_refusal(card, "library");
	if (dlsym(cuda_library, "cuDevicePrimaryCtxRelease_v2"))
		CUDA(cuDevicePrimaryCtxRelease_v2, device);
}

/* A child finds the driver's functions by the C library's own dlsym: no call of it passes the
 * preload. */
static void check_driver(const struct limits *limits)
{
	int status = 0;

	(void)fflush(stdout);
	const pid_t child = fork();

	if (child == 0) {
		lookup = libc_symbols()->dlsym;
		const CUresult started = CUDA(cuInit, 0);

		check(started == CUDA_SUCCESS, "the driver's own cuInit answers %d", (int)started);
		for (unsigned i = 0; started == CUDA_SUCCESS && i < limits->card_count; i++) {
			CUdevice device = 0;

			if (enter_card(&limits->cards[i], &device))
				check_refusal(&limits->cards[i], "driver, past the library");
		}
		exit(verdict);
	}
	const bool has_ended = child > 0 && waitpid(child, &status, 0) == child;

	if (!has_ended || !WIFEXITED(status) || WEXITSTATUS(status) != EFFECTIVE)
		check(false, "memory by driver is not proved");
}

/* By whose code the driver's functions are found, in a fresh lookup. */
static void check_library(void)
{
	Dl_info object = {0};
	void *function = dlsym(cuda_library, "cuMemAlloc_v2");

	if (function)
		dladdr(function, &object);
	check(object.dli_fname && strstr(object.dli_fname, "libgpuslice"),
	      "cuMemAlloc is answered by %s", object.dli_fname ? object.dli_fname : "nobody");
}

int main(void)
{
	static struct limits limits;

	read_limits(&limits);
	cuda_library = dlopen("libcuda.so.1", RTLD_NOW);
	nvml_library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!cuda_library) {
		(void)printf("cannot tell: %s\n", dlerror());
		return CANNOT_TELL;
	}
	check_library();
	if (limits.is_memory_by_driver)
		check_driver(&limits);
	const CUresult started = CUDA(cuInit, 0);

	check(started == CUDA_SUCCESS, "cuInit answers %d", (int)started);
	for (unsigned i = 0; started == CUDA_SUCCESS && i < limits.card_count; i++)
		check_card(&limits.cards[i], limits.policy);
	return verdict == EFFECTIVE && is_unchecked ? CANNOT_TELL : verdict;
}
/* NOLINTEND(concurrency-mt-unsafe) */
