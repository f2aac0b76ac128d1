/* What the environment asks of the simulated driver: README.md lists it all. */
#ifndef GPUSIM_SETTINGS_H
#define GPUSIM_SETTINGS_H

#include <stdint.h>

/* NULL when it is not set. */
const char *setting(const char *name);
/* A whole number; `otherwise` when it is not set or is none. */
uint64_t setting_number(const char *name, uint64_t otherwise);

#endif
