/*
 * Standing in front of the driver, and of the C library's dlsym.
 *
 * glibc loads what LD_PRELOAD names, and what its loader is given as --preload,
 * before what /etc/ld.so.preload names, which is us. A pod that names the C
 * library or the driver there would have the loader find theirs first, and no
 * order can be changed any more. So before main such a process starts once
 * more, with our path first in LD_PRELOAD; everything else stays as it was.
 * Where that cannot be done the process gets no card.
 *
 * A library that merely stands in front, an allocator or a profiler's wrapper,
 * is left there: it does not answer for the driver.
 */
#include "driver/object.h"
#include "slice/log.h"
#include "slice/slice.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PRELOAD "LD_PRELOAD="
#define NO_CARDS "CUDA_VISIBLE_DEVICES=-1"

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

static size_t index_of(const char *name)
{
	size_t i = 0;

	while (environ[i] && strncmp(environ[i], name, strlen(name)) != 0)
		i++;
	return i;
}

static void *pages(size_t bytes)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* The environment with `path` before whatever else is to be loaded; NULL: that was so already. */
static char **environment_with(const char *path)
{
	const size_t place = index_of(PRELOAD), path_bytes = strlen(path);
	const char *others = environ[place] ? environ[place] + sizeof(PRELOAD) - 1 : "";
	size_t count = place;

	if (strncmp(others, path, path_bytes) == 0 &&
	    (!others[path_bytes] || strchr(" :", others[path_bytes])))
		return NULL;
	while (environ[count])
		count++;
	const size_t list_bytes = (count + 2) * sizeof(char *);
	const size_t text_bytes = sizeof(PRELOAD) + path_bytes + 1 + strlen(others);
	char **list = pages(list_bytes + text_bytes);

	if (!list)
		return NULL;
	char *text = (char *)list + list_bytes;

	memcpy(list, environ, count * sizeof(char *));
	(void)snprintf(text, text_bytes, PRELOAD "%s%s%s", path, *others ? ":" : "", others);
	list[place] = text;
	return list;
}

/* The words this image was started with, the loader's own among them where it was run as a program.
 */
static char **command_line(void)
{
	enum { MOST_BYTES = 1 << 24 };
	char *text = pages(MOST_BYTES); /* untouched pages cost nothing */
	const int fd = text ? open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC) : -1;
	size_t length = 0, count = 0;
	ssize_t got = 1;

	while (fd >= 0 && length < MOST_BYTES && got > 0) {
		got = read(fd, text + length, MOST_BYTES - length);
		length += got > 0 ? (size_t)got : 0;
	}
	if (fd >= 0)
		close(fd);
	if (fd < 0 || got < 0 || length == MOST_BYTES)
		return NULL;
	for (size_t i = 0; i < length; i++)
		count += !text[i];
	char **list = pages((count + 1) * sizeof(char *));

	for (size_t i = 0; list && i < count; i++) {
		list[i] = text;
		text += strlen(text) + 1;
	}
	return list;
}

/* As it was called, else by its own name, where that leads to it: the kernel names the process so.
 */
static const char *executable(void)
{
	static const char link[] = "/proc/self/exe";
	static char path[PATH_MAX];
	const char *names[] = {
		(const char *)getauxval(AT_EXECFN), // NOLINT(performance-no-int-to-ptr)
		path,
	};
	struct stat named, running;

	if (stat(link, &running) != 0 || readlink(link, path, sizeof(path) - 1) < 0)
		return link;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i] && stat(names[i], &named) == 0 && named.st_dev == running.st_dev &&
		    named.st_ino == running.st_ino)
			return names[i];
	return link;
}

/* Returns only where this image cannot be started anew. */
static void start_anew(void)
{
	Dl_info us;

	if (!dladdr(_DYNAMIC, &us) || !us.dli_fname || !strchr(us.dli_fname, '/'))
		return;
	char **environment = environment_with(us.dli_fname);
	char **arguments = environment ? command_line() : NULL;

	if (arguments)
		execve(executable(), arguments, environment);
}

/* The driver reads this variable when it starts. Nothing is allocated: an entry is taken over. */
static void take_the_cards_away(void)
{
	size_t place = index_of("CUDA_VISIBLE_DEVICES=");

	if (!environ[place])
		place = index_of(PRELOAD);
	if (environ[place])
		environ[place] = (char *)NO_CARDS;
	slice_close("LD_PRELOAD names the driver or the C library, and this process cannot be "
		    "started with our library before it");
}

/* The loader calls it once, before main. In all ordinary processes it reads a list and returns. */
__attribute__((constructor)) static void stand_in_front(void)
{
	const int saved = errno;

	/* A setuid program is loaded with nothing of the user's choice. */
	if (!is_somebody_in_front() || getauxval(AT_SECURE))
		return;
	/* Neither named by a pod nor by the loader's command line (then it has no base): dlopen. */
	if (!environ || (!environ[index_of(PRELOAD)] && getauxval(AT_BASE)) || !slice_is_meant())
		return;
	start_anew();
	take_the_cards_away();
	errno = saved;
}
