/*
 * Finding the stand-in for a name or for a driver's pointer, and cuGetProcAddress, which answers by
 * it. The table is immutable, so threads may share it.
 */
#include "hook/table.h"

#include "books/enter.h"
#include "books/slice_region.h"
#include "slice/process.h"

#include <pthread.h>
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
 * A newer driver has functions that this library does not know. Those that by their
 * name change what is counted are counted themselves, and named once, so that an
 * operator sees that the library is older than the driver.
 */
LOCK_OF_PROCESS(noting)

static bool is_known(const char *name)
{
	static const char *const known[] = {
#define CUDA_CALL(name) #name,
#define CUDA_PASS(name) #name,
#include "driver/symbols.def"
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i], name) == 0)
			return true;
	return false;
}

/*
 * By shape: what a later driver would call a function that takes memory or card time, gives memory
 * back, makes or ends a context, brings code or takes it off, or waits for the card.
 */
static bool changes_what_is_counted(const char *name)
{
	static const struct {
		const char *beginning, *part;
	} shapes[] = {
		{"cu", "CtxCreate"},
		{"cu", "Synchronize"},
		{"cuMemcpy", "Batch"},
		{"cuMemcpy", "WithAttributes"},
		{"cuMem", "Alloc"},
		{"cuMem", "Create"},
		{"cuArray", "Create"},
		{"cuMipmappedArray", "Create"},
		{"cuMulticastCreate", ""},
		{"cuGraphLaunch", ""},
		{"cuGraphInstantiate", ""},
		{"cuLaunch", ""},
		{"cuModuleLoad", ""},
		{"cuModuleUnload", ""},
		{"cuLibraryLoad", ""},
		{"cuLibraryUnload", ""},
		{"cuFuncLoad", ""},
		{"cuCtxDestroy", ""},
		{"cuCtxDetach", ""},
		{"cuGreenCtxDestroy", ""},
		{"cuMemFree", ""},
		{"cuMemRelease", ""},
		{"cuMemUnmap", ""},
		{"cuMemPoolDestroy", ""},
		{"cuArrayDestroy", ""},
		{"cuMipmappedArrayDestroy", ""},
		{"cuGraphExecDestroy", ""},
		{"cuDevicePrimaryCtxRe", ""}, /* Retain, Release, Reset */
	};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		if (strncmp(name, shapes[i].beginning, strlen(shapes[i].beginning)) == 0 &&
		    strstr(name, shapes[i].part))
			return true;
	return false;
}

void drift_note(const char *name)
{
	enum { REMEMBERED = 32 };
	static char seen[REMEMBERED][64];
	int i = 0;

	if (!changes_what_is_counted(name) || is_known(name) || slice_state() != SLICE_OPEN ||
	    !slice_open_region())
		return;
	process_in_children(noting_in_child);
	pthread_mutex_lock(&noting);
	while (i < REMEMBERED && seen[i][0] && strncmp(seen[i], name, sizeof(seen[i]) - 1) != 0)
		i++;
	const bool is_new = i < REMEMBERED && !seen[i][0];

	if (is_new)
		strncpy(seen[i], name, sizeof(seen[i]) - 1);
	pthread_mutex_unlock(&noting);
	if (is_new) {
		atomic_fetch_add_explicit(&slice_region()->drift_total, 1, memory_order_relaxed);
		log_line("%s is new here, or this version of it: what it takes or gives is "
			 "not counted",
			 name);
	}
}

/*
 * Does this driver give out the addresses that dlsym finds? Then a pointer that
 * we do not know is a newer version of the function, not one of the table.
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
 * driver answers first and alone fills symbolStatus. What it asks itself meanwhile stays its own;
 * not so what a tool asks that it opens while it starts. Any thread.
 */
#define GETS_ADDRESS(name, parameters, arguments)                                                  \
	CUresult name parameters                                                                   \
	{                                                                                          \
		(void)enter();                                                                     \
		const CUresult result = PASS(name, arguments);                                     \
                                                                                                   \
		if (result == CUDA_SUCCESS &&                                                      \
		    !(driver_is_inside() && driver_owns(__builtin_return_address(0))))             \
			replace(symbol, function, version, flags);                                 \
		return result;                                                                     \
	}

GETS_ADDRESS(cuGetProcAddress_v2,
	     (const char *symbol, void **function, int version, cuuint64_t flags,
	      CUdriverProcAddressQueryResult *status),
	     (symbol, function, version, flags, status))
GETS_ADDRESS(cuGetProcAddress, (const char *symbol, void **function, int version, cuuint64_t flags),
	     (symbol, function, version, flags))
