/* What a loaded object is: the C library, the driver, or somebody else. See driver/object.c. */
#pragma once

#include <link.h>
#include <stdbool.h>

/* By its soname, and by its file's name. Any thread, also before the C library is ready. */
bool object_is_c_library(const struct link_map *map);
bool object_is_driver(const struct link_map *map);
