/*
 * The real driver: a pointer for every function that we stand in for or call.
 *
 * A pointer is NULL where the loaded driver lacks the function. The pointers
 * are those of the driver's own objects, never found through a search that
 * could end at our hooks.
 */
#pragma once

#include "driver/api.h"

#include <stdbool.h>

struct cuda_driver {
#define CUDA_HOOK(name, base, since, streams) __typeof__(name) *name;
#define CUDA_CALL(name) __typeof__(name) *name;
#include "driver/symbols.def"
};

struct nvml_driver {
#define NVML_HOOK(name) __typeof__(name) *name;
#define NVML_CALL(name) __typeof__(name) *name;
#include "driver/symbols.def"
};

extern struct cuda_driver cuda;
extern struct nvml_driver nvml;

/* False when there is no such library. `may_open`: also when nobody has loaded it yet. */
bool driver_load_cuda(bool may_open);
bool driver_load_nvml(bool may_open);

/* Is this address code or data of the driver itself? */
bool driver_owns(const void *address);

/*
 * Between these two the calling thread runs the driver for us: hooks that it
 * meets pass straight on, and lookups get the raw driver. They nest.
 */
void driver_go_inside(void);
void driver_come_back(void);
bool driver_is_inside(void);
