/*
 * A driver that looks itself up, as WSL's does in cuInit, by the way that
 * ASKING names: "default" and "next" by search, "self" by the program's own
 * handle. Whom it finds, if not itself, it takes for the driver proper and
 * hands the call on. "nvml": it starts NVML in cuInit, as of driver 570.
 * Prints how often cuInit came in.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#define cuInit cuInit_of_libfuture
#include "libfuture.c" /* NOLINT(bugprone-suspicious-include) */
#undef cuInit

#include <dlfcn.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>

/* NULL where it failed; else NVML tells the whole card. */
static void *start_nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
	nvmlDevice_t card;
	nvmlMemory_t memory = {0};

	if (!library || ((__typeof__(nvmlInit_v2) *)dlsym(RTLD_DEFAULT, "nvmlInit_v2"))() ||
	    ((__typeof__(nvmlDeviceGetHandleByIndex_v2) *)dlsym(
		    library, "nvmlDeviceGetHandleByIndex_v2"))(0, &card) ||
	    ((__typeof__(nvmlDeviceGetMemoryInfo) *)dlsym(library, "nvmlDeviceGetMemoryInfo"))(
		    card, &memory))
		return NULL;
	fprintf(stderr, "NVML %llu\n", memory.total >> 20);
	return NULL;
}

static void *ask(const char *way)
{
	if (!strcmp(way, "nvml"))
		return start_nvml();
	if (!strcmp(way, "default"))
		return dlsym(RTLD_DEFAULT, "cuInit");
	if (!strcmp(way, "next"))
		return dlsym(RTLD_NEXT, "cuInit");
	return dlsym(dlopen(NULL, RTLD_NOW), "cuInit");
}

static CUresult start(unsigned int flags)
{
	static int calls;
	const char *way = getenv("ASKING");
	CUresult (*proper)(unsigned int) = way ? (CUresult(*)(unsigned int))ask(way) : NULL;

	if (++calls > 100)
		return CUDA_ERROR_UNKNOWN;
	fprintf(stderr, "cuInit %d\n", calls);
	return proper && proper != start ? proper(flags) : cuInit_of_libfuture(flags);
}

/* Its own name for it is bound inside, as in a real driver; ours stands before it outside. */
CUresult cuInit(unsigned int flags) __attribute__((alias("start")));
