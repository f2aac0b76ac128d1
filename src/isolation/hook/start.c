/* cuInit, and cuGetProcAddress: the two doors that every program comes through. */
#include "books/entry.h"
#include "books/slice_region.h"
#include "driver/driver.h"
#include "hook/drift.h"
#include "hook/table.h"
#include "slice/log.h"
#include "slice/slice.h"

#include <stdatomic.h>

/* Closed means no card; a process without a slot could not be counted. Any thread. */
CUresult cuInit(unsigned int Flags)
{
	ENTER(cuInit, Flags);
	if (slice_slot() < 0) {
		/* Else a line has said what is wrong with the region. */
		if (slice_state() == SLICE_OPEN)
			log_line(
				"%d processes of this container use its slice: no room for another",
				REGION_SLOTS);
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	/* WSL's driver looks itself up: it must not find us. */
	driver_go_inside();
	const CUresult result = cuda.cuInit(Flags);

	driver_come_back();
	return result;
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
