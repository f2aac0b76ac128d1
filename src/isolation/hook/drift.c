/*
 * A newer driver has functions that this library does not know. Those that by their
 * name change what is counted are counted themselves, and named once, so that an
 * operator sees that the library is older than the driver.
 */
#include "hook/drift.h"

#include "books/slice_region.h"
#include "slice/log.h"
#include "slice/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

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

static bool begins_with_any(const char *name, const char *const *beginnings)
{
	for (; *beginnings; beginnings++)
		if (strncmp(name, *beginnings, strlen(*beginnings)) == 0)
			return true;
	return false;
}

/*
 * By shape: what a later driver would call a function that makes or ends a context,
 * brings code or takes it off, frees memory, or waits for the card.
 */
static bool changes_what_is_counted(const char *name)
{
	static const char *const beginnings[] = {
		"cuModuleLoad",
		"cuModuleUnload",
		"cuLibraryLoad",
		"cuLibraryUnload",
		"cuFuncLoad",
		"cuCtxDestroy",
		"cuCtxDetach",
		"cuGreenCtxDestroy",
		"cuMemFree",
		"cuMemRelease",
		"cuMemUnmap",
		"cuMemPoolDestroy",
		"cuArrayDestroy",
		"cuMipmappedArrayDestroy",
		"cuGraphExecDestroy",
		"cuDevicePrimaryCtxRetain",
		"cuDevicePrimaryCtxRelease",
		"cuDevicePrimaryCtxReset",
		NULL,
	};

	return strstr(name, "CtxCreate") || strstr(name, "Synchronize") ||
	       begins_with_any(name, beginnings);
}

/* ... or that takes memory or card time. */
static bool takes_from_the_card(const char *name)
{
	if (strncmp(name, "cuMem", 5) == 0)
		return strstr(name, "Alloc") || strstr(name, "Create");
	if (strncmp(name, "cuArray", 7) == 0 || strncmp(name, "cuMipmappedArray", 16) == 0)
		return strstr(name, "Create") != NULL;
	if (strncmp(name, "cuGraph", 7) == 0)
		return strncmp(name, "cuGraphLaunch", 13) == 0 ||
		       strncmp(name, "cuGraphInstantiate", 18) == 0;
	return strncmp(name, "cuLaunch", 8) == 0 || strncmp(name, "cuMulticastCreate", 17) == 0;
}

static void drift_in_child(void)
{
	noting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

void drift_note(const char *name)
{
	enum { REMEMBERED = 32 };
	static char seen[REMEMBERED][64];
	int i = 0;

	if (!(takes_from_the_card(name) || changes_what_is_counted(name)) || is_known(name) ||
	    slice_state() != SLICE_OPEN || !slice_open_region())
		return;
	process_in_children(drift_in_child);
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
