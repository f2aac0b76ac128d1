/* Which libraries may be loaded with RTLD_DEEPBIND; see hook/deepbind.c. */
#pragma once

#include <stdbool.h>

/*
 * Has the file, as dlopen is given it, certainly nothing to do with CUDA? It names
 * neither the driver nor the runtime, and brings no library of which that is not
 * known. Any thread.
 */
bool deepbind_is_harmless(const char *file);
