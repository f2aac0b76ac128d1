/*
 * Starting: standing in front of the driver and of the C library's dlsym, callbacks, by which lower
 * folders reach what is above them, and cuInit.
 */
#include "books/memory_limit.h"
#include "books/memory_charge.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "books/slice_region.h"
#include "compute/meter.h"
#include "driver/driver.h"
#include "driver/libc_symbols.h"
#include "memory/graphs.h"
#include "memory/pools.h"
#include "slice/slice.h"
#include "overhead/overhead.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/auxv.h>

static void forget_parent(void)
{
	holdings_after_fork();
	calls_after_fork();
	charge_after_fork();
	pools_after_fork();
	graphs_after_fork();
	overhead_after_fork();
	meter_after_fork();
	contexts_after_fork();
}

static void refresh(int card, uint64_t wanted)
{
	overhead_adopt_current();
	overhead_refresh(card, wanted);
}

/* Pools, graphs and contexts may have given memory back since we looked. */
static void reclaim(int card)
{
	pools_refresh(card);
	graphs_refresh(card);
	overhead_refresh_now(card);
}

/* When the library is loaded, and at cuInit: others' constructors may run before it. */
static void register_callbacks(void)
{
	static const struct account_sources sources = {
		.refresh = refresh, .reclaim = reclaim, .follow = pools_follow_card};

	enter_register(forget_parent);
	account_register(&sources);
}

/*
 * glibc loads what LD_PRELOAD names, and what its loader is given as --preload,
 * before what /etc/ld.so.preload names, which is us. Where a pod names the C
 * library or the driver there, the loader finds theirs first, and no order can be
 * changed any more: then the process gets no card, and a line says why.
 *
 * A library that merely stands in front, an allocator or a profiler's wrapper,
 * is left there, unless it looks functions up for the program and finds the driver's own.
 */
/* This library's: how the loader's list of objects names us. */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* Would the program, asking this library's dlsym for a function, get past the one of ours? */
static bool leads_past_us(void *(*look)(void *, const char *))
{
	static const char name[] = "cuMemAllocPitch_v2"; /* that a wrapper has hardly of its own */
	void *driver = libc_symbols()->dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *found = look(driver ? driver : RTLD_DEFAULT, name);

	/* Without a driver ours is found by who does not ask us: we say that there is none. */
	return driver ? driver_owns(found) : found == (void *)cuMemAllocPitch_v2;
}

/* The first in front of us that leaves us no place; NULL: none. */
static const struct link_map *in_front(void)
{
	const struct link_map *first = _r_debug.r_map, *map;
	void *found = first ? libc_symbols_after(first, "dlsym") : NULL;
	struct link_map *owner = NULL;
	Dl_info object;

	/* The program itself is always first; its dependencies come after us. */
	for (map = first ? first->l_next : NULL; map && map->l_ld != _DYNAMIC; map = map->l_next)
		if (object_is_c_library(map) || object_is_driver(map))
			return map;
	if (!map || !found || !dladdr1(found, &object, (void **)&owner, RTLD_DL_LINKMAP) ||
	    owner->l_ld == _DYNAMIC || !slice_is_meant() ||
	    !leads_past_us((void *(*)(void *, const char *))found))
		return NULL;
	return owner;
}

/* The loader calls it once, before main. In all ordinary processes it reads a list and returns. */
__attribute__((constructor)) static void stand_in_front(void)
{
	static char no_cards[] = "CUDA_VISIBLE_DEVICES=-1";
	const int saved = errno;

	register_callbacks();
	/* A setuid program is loaded with nothing of the user's choice. */
	if (getauxval(AT_SECURE))
		return;
	const struct link_map *other = in_front();

	/* No thread yet: NOLINTBEGIN(concurrency-mt-unsafe) */
	/* Neither named by a pod nor by the loader's command line (then it has no base): dlopen. */
	if (!other || (!getenv("LD_PRELOAD") && getauxval(AT_BASE)) || !slice_is_meant())
		return;
	/* The driver reads it when it starts, also where it is not we who are called. */
	putenv(no_cards);
	/* NOLINTEND(concurrency-mt-unsafe) */
	if (object_is_c_library(other) || object_is_driver(other))
		slice_close("LD_PRELOAD names the driver or the C library, which then stands "
			    "before the library that keeps this slice");
	else
		slice_close("%s, of LD_PRELOAD, looks functions of the driver up past the library "
			    "that keeps this slice, before which it stands",
			    other->l_name);
	errno = saved;
}

/* Closed means no card; a process without a slot could not be counted. Any thread. */
CUresult cuInit(unsigned int Flags)
{
	register_callbacks();
	ENTER(cuInit, Flags);
	/* Opened here, where no lock of ours is held: who has the loader's may wait for it. */
	(void)driver_load_nvml(true);
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
