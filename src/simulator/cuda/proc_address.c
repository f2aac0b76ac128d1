/* cuGetProcAddress: which ABI of a function a program of some CUDA version gets. */
#include "driver.h"
#include "stream.h"

#include <string.h>

struct entry {
	const char *name;
	int version;
	enum default_stream null;
	void *address;
};

/* Declared without a prototype: the header's differ, and only the address counts here. */
#define ENTRY(name, version, null, symbol) extern char address_of_##symbol[] __asm__(#symbol);
#include "symbols.def"
#undef ENTRY

static const struct entry entries[] = {
#define ENTRY(name, version, null, symbol) {#name, version, null, address_of_##symbol},
#include "symbols.def"
#undef ENTRY
};

enum { ENTRIES = sizeof(entries) / sizeof(entries[0]) };

static const struct entry *first_named(const char *name)
{
	size_t low = 0;
	size_t high = ENTRIES;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (strcmp(entries[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < ENTRIES && strcmp(entries[low].name, name) == 0 ? &entries[low] : NULL;
}

/* The newest ABI not newer than `version`. The per-thread one counts before a newer legacy one. */
static const struct entry *choose(const struct entry *entry, int version, bool per_thread)
{
	const struct entry *legacy = NULL;
	const struct entry *threaded = NULL;

	for (const char *name = entry->name;
	     entry < entries + ENTRIES && strcmp(entry->name, name) == 0; entry++) {
		if (entry->version > version)
			continue;
		if (entry->null == PER_THREAD)
			threaded = entry;
		else
			legacy = entry;
	}
	return per_thread && threaded ? threaded : legacy;
}

/* The driver knows no entry that came after it. */
static bool is_known(const struct entry *entry, int driver_version)
{
	return entry && choose(entry, driver_version, false);
}

static CUresult look_up(const char *name, void **address, int version, cuuint64_t flags,
			CUdriverProcAddressQueryResult *status)
{
	int driver_version = 0;
	const struct entry *first;
	const struct entry *chosen;

	cuDriverGetVersion(&driver_version);
	if (!name || !address || version < 0 ||
	    flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	/* Asked for a version above its own, the driver gives its newest function. */
	if (version > driver_version)
		version = driver_version;
	first = first_named(name);
	chosen = first ? choose(first, version,
				flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		       : NULL;
	*address = chosen ? chosen->address : NULL;
	if (chosen)
		*status = CU_GET_PROC_ADDRESS_SUCCESS;
	else if (is_known(first, driver_version))
		*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	else
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

/* CUDA 11.3: no status, so not finding is an error. */
CUresult cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
	CUresult result = look_up(name, address, version, flags, &status);

	return result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS
		       ? CUDA_ERROR_NOT_FOUND
		       : result;
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
	CUresult result = look_up(name, address, version, flags, &found);

	if (status && result == CUDA_SUCCESS)
		*status = found;
	return result;
}
