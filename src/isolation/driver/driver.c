/* Loading the real driver's functions, and telling its code from others'. */
#include "driver/driver.h"

#include "driver/libc_symbols.h"
#include "slice/process.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct cuda_driver cuda;
struct nvml_driver nvml;

LOCK_OF_PROCESS(load_lock)
static atomic_bool has_cuda, has_nvml;
static __thread int depth_inside __attribute__((tls_model("initial-exec")));

void driver_go_inside(void)
{
	depth_inside++;
}

void driver_come_back(void)
{
	depth_inside--;
}

bool driver_is_inside(void)
{
	return depth_inside > 0;
}

bool driver_owns(const void *address)
{
	struct link_map *map = NULL;
	Dl_info object;

	return address && dladdr1(address, &object, (void **)&map, RTLD_DL_LINKMAP) && map &&
	       object_is_driver(map);
}

/* The soname is what everybody loads; `may_open` as in driver/driver.h. */
static void *open_library(const char *soname, bool may_open)
{
	const struct libc_symbols *libc = libc_symbols();
	void *library = libc->dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);

	if (!library && may_open)
		library = libc->dlopen(soname, RTLD_LAZY);
	return library;
}

/*
 * The library itself is searched, and what it needs: never what stands in front of it. No lock is
 * held meanwhile: another thread may have the loader's, in a constructor that calls the driver.
 */
static bool load_cuda(bool may_open, struct cuda_driver *found)
{
	void *library = open_library("libcuda.so.1", may_open);

	if (!library)
		return false;
#define RESOLVE(name, into) *(void **)&(into) = libc_symbols()->dlsym(library, #name);
#define CUDA_HOOK(name, base, since, streams) RESOLVE(name, found->name)
#define CUDA_CALL(name) RESOLVE(name, found->name)
#include "driver/symbols.def"
	return true;
}

static bool load_nvml(bool may_open, struct nvml_driver *found)
{
	void *library = open_library("libnvidia-ml.so.1", may_open);

	if (!library)
		return false;
#define NVML_HOOK(name) RESOLVE(name, found->name)
#define NVML_CALL(name) RESOLVE(name, found->name)
#include "driver/symbols.def"
	return true;
}

/* Threads that come first together find the same; the first of them publishes it. */
static void publish(atomic_bool *is_loaded, void *driver, const void *found, size_t bytes)
{
	process_in_children(load_lock_in_child);
	pthread_mutex_lock(&load_lock);
	if (!atomic_load_explicit(is_loaded, memory_order_relaxed)) {
		memcpy(driver, found, bytes);
		atomic_store_explicit(is_loaded, true, memory_order_release);
	}
	pthread_mutex_unlock(&load_lock);
}

/* Any thread; a library that was not there may be there at the next call. */
#define LOADS(name)                                                                                \
	bool driver_load_##name(bool may_open)                                                     \
	{                                                                                          \
		struct name##_driver found;                                                        \
                                                                                                   \
		if (atomic_load_explicit(&has_##name, memory_order_acquire))                       \
			return true;                                                               \
		driver_go_inside();                                                                \
		const bool is_there = load_##name(may_open, &found);                               \
                                                                                                   \
		driver_come_back();                                                                \
		if (is_there)                                                                      \
			publish(&has_##name, &name, &found, sizeof(found));                        \
		return is_there;                                                                   \
	}

LOADS(cuda)
LOADS(nvml)
