/*
 * Standing in front of the driver, and of the C library's dlsym.
 *
 * glibc loads what LD_PRELOAD names, and what its loader is given as --preload,
 * before what /etc/ld.so.preload names, which is us. Where a pod names the C
 * library or the driver there, the loader finds theirs first, and no order can be
 * changed any more: then the process gets no card, and a line says why.
 *
 * A library that merely stands in front, an allocator or a profiler's wrapper,
 * is left there: it does not answer for the driver.
 */
#include "driver/object.h"
#include "hook/start.h"
#include "slice/slice.h"

#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/auxv.h>

/* Ours: how the loader's list of objects names us. */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

static bool is_somebody_in_front(void)
{
	const struct link_map *map = _r_debug.r_map;

	/* The program itself is always first; its dependencies come after us. */
	for (map = map ? map->l_next : NULL; map && map->l_ld != _DYNAMIC; map = map->l_next)
		if (object_is_c_library(map) || object_is_driver(map))
			return true;
	return false;
}

/* The loader calls it once, before main. In all ordinary processes it reads a list and returns. */
__attribute__((constructor)) static void stand_in_front(void)
{
	static char no_cards[] = "CUDA_VISIBLE_DEVICES=-1";
	const int saved = errno;

	register_callbacks();
	/* A setuid program is loaded with nothing of the user's choice. */
	if (!is_somebody_in_front() || getauxval(AT_SECURE))
		return;
	/* No thread yet: NOLINTBEGIN(concurrency-mt-unsafe) */
	/* Neither named by a pod nor by the loader's command line (then it has no base): dlopen. */
	if ((!getenv("LD_PRELOAD") && getauxval(AT_BASE)) || !slice_is_meant())
		return;
	/* The driver reads it when it starts, also where it is not we who are called. */
	putenv(no_cards);
	/* NOLINTEND(concurrency-mt-unsafe) */
	slice_close("LD_PRELOAD names the driver or the C library, which then stands before the "
		    "library that keeps this slice");
	errno = saved;
}
