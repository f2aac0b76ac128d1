/*
 * Finding the stand-in for a name or for a driver's pointer, and cuGetProcAddress, which answers by
 * it. The table is immutable, so threads may share it.
 */
#include "hook/table.h"

#include "books/enter.h"
#include "hook/drift.h"
#include "slice/slice.h"

#include <stdatomic.h>
#include <string.h>

enum { LEGACY, PER_THREAD };

static const struct hook hooks[] = {
#define CUDA_HOOK(name, base, since, streams)                                                      \
	{#name, base, since, streams == PER_THREAD, (void *)name, (void *const *)&cuda.name},
#define NVML_HOOK(name) {#name, NULL, 0, false, (void *)name, (void *const *)&nvml.name},
#include "driver/symbols.def"
};

enum { HOOK_COUNT = sizeof(hooks) / sizeof(hooks[0]) };

const struct hook *hook_by_name(const char *name)
{
	for (size_t i = 0; i < HOOK_COUNT; i++)
		if (strcmp(hooks[i].name, name) == 0)
			return &hooks[i];
	return NULL;
}

const struct hook *hook_by_real(const void *function)
{
	for (size_t i = 0; function && i < HOOK_COUNT; i++)
		if (*hooks[i].real == function)
			return &hooks[i];
	return NULL;
}

const struct hook *hook_by_base(const char *base, int version, bool is_per_thread)
{
	const struct hook *best = NULL;

	for (size_t i = 0; i < HOOK_COUNT; i++) {
		const struct hook *hook = &hooks[i];

		if (!hook->base || strcmp(hook->base, base) != 0 || hook->since > version)
			continue;
		/* Most functions have one variant: the legacy one serves both. */
		if (hook->is_per_thread && !is_per_thread)
			continue;
		if (!best || hook->since > best->since ||
		    (hook->since == best->since && hook->is_per_thread))
			best = hook;
	}
	return best;
}

/*
 * Does this driver give out the addresses that dlsym finds? Then a pointer that
 * we do not know is a newer version of the function, not one of ours.
 */
static bool gives_exports(void)
{
	static _Atomic int answer; /* 0: not asked, 1: yes, 2: no */
	void *function = NULL;

	if (!atomic_load(&answer)) {
		if (cuda.cuGetProcAddress_v2)
			cuda.cuGetProcAddress_v2("cuInit", &function, 12000, 0, NULL);
		else if (cuda.cuGetProcAddress)
			cuda.cuGetProcAddress("cuInit", &function, 11030, 0);
		atomic_store(&answer, function == (void *)cuda.cuInit ? 1 : 2);
	}
	return atomic_load(&answer) == 1;
}

/*
 * The driver has chosen, by version and flags, as only it can; its pointer says
 * which of our stand-ins has the same interface. Where a driver gives out other
 * addresses than dlsym does, name, version and flags must do.
 */
static void replace(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	const bool is_per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	if (!symbol || !pfn || !*pfn || slice_state() == SLICE_INERT)
		return;
	const struct hook *hook = hook_by_real(*pfn);

	if (!hook && !gives_exports())
		hook = hook_by_base(symbol, version, is_per_thread);
	if (hook)
		*pfn = hook->function;
	else
		drift_note(symbol);
}

/*
 * Also where the slice is closed: everything resolves, and cuInit refuses. The
 * driver answers first and alone fills symbolStatus. Any thread.
 */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *symbolStatus)
{
	const enum entry entry = enter();

	if (!cuda.cuGetProcAddress_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	const CUresult result =
		cuda.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);

	if (result == CUDA_SUCCESS && entry != ENTRY_PASS)
		replace(symbol, pfn, cudaVersion, flags);
	return result;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	const enum entry entry = enter();

	if (!cuda.cuGetProcAddress)
		return CUDA_ERROR_NOT_SUPPORTED;
	const CUresult result = cuda.cuGetProcAddress(symbol, pfn, cudaVersion, flags);

	if (result == CUDA_SUCCESS && entry != ENTRY_PASS)
		replace(symbol, pfn, cudaVersion, flags);
	return result;
}
