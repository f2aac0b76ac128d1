/* The C library's own dlsym, dlvsym, dlopen and dlmopen, and what a loaded object is; see
 * driver/libc_symbols.c. */
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>

struct libc_symbols {
	void *(*dlsym)(void *handle, const char *name);
	void *(*dlvsym)(void *handle, const char *name, const char *version);
	void *(*dlopen)(const char *file, int flags);
	void *(*dlmopen)(Lmid_t space, const char *file, int flags);
};

const struct libc_symbols *libc_symbols(void);

/* What RTLD_NEXT finds by this name for code in this object; NULL when there is nothing. */
void *libc_symbols_after(const struct link_map *object, const char *name);

/* By its soname, and by its file's name. Any thread, also before the C library is ready. */
bool object_is_c_library(const struct link_map *map);
bool object_is_driver(const struct link_map *map);
