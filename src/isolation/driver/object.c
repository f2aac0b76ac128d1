/*
 * Telling loaded objects apart. A file can be copied under any name, so the
 * soname inside counts as well: a private copy of the driver is the driver.
 *
 * Lookups come before the C library's own string functions can be called (a
 * sanitizer that stands in for them), so none is used here.
 */
#include "driver/object.h"

#include <elf.h>
#include <stddef.h>

/* glibc relocates these pointers in place on our architectures; older or other loaders may not. */
static const char *strings_of(const struct link_map *map)
{
	for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_STRTAB)
			return (const char *)(entry->d_un.d_ptr < map->l_addr
						      ? map->l_addr + entry->d_un.d_ptr
						      : entry->d_un.d_ptr);
	return NULL;
}

static const char *soname_of(const struct link_map *map)
{
	const char *strings = strings_of(map);

	for (const ElfW(Dyn) *entry = map->l_ld; strings && entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_SONAME)
			return strings + entry->d_un.d_val;
	return NULL;
}

static bool begins(const char *text, const char *word)
{
	while (*word && *text == *word) {
		text++;
		word++;
	}
	return !*word;
}

static bool has_name(const struct link_map *map, const char *const *beginnings)
{
	const char *file = map->l_name;
	const char *soname = soname_of(map);

	for (const char *at = map->l_name; at && *at; at++)
		if (*at == '/')
			file = at + 1;
	for (; *beginnings; beginnings++)
		if ((file && begins(file, *beginnings)) || (soname && begins(soname, *beginnings)))
			return true;
	return false;
}

bool object_is_c_library(const struct link_map *map)
{
	static const char *const names[] = {"libc.so.", "libc-2.", "libdl.so.", "libdl-2.", NULL};

	return has_name(map, names);
}

bool object_is_driver(const struct link_map *map)
{
	static const char *const names[] = {"libcuda.so", "libcuda_", "libnvidia-ml.so", NULL};

	return has_name(map, names);
}
