/* From CUDA's devices, streams and contexts to the lines of the limits file. */
#pragma once

#include "driver/api.h"
#include "slice/limits.h"

#include <stdbool.h>

/* All may be called from any thread. The answer is a line of the limits file or CARD_FOREIGN. */

/* In *card; the driver's error where it does not know the device, or cannot say yet. */
CUresult card_find(CUdevice device, int *card);

/* The same; CARD_FOREIGN for a device of which the driver tells nothing. */
int card_of_device(CUdevice device);

/* The current context's card, in *card; the driver's error when there is none. */
CUresult card_current(int *card);

/* The device that work on this stream runs on; the current context's when in doubt. */
CUresult device_of_stream(CUstream stream, CUdevice *device);

/* Memory of the host is not the slice's. */
bool location_is_host(const CUmemLocation *location);
/* The device of any other; for a kind of place that is newer than this library the current
 * context's. */
CUresult device_of_location(const CUmemLocation *location, CUdevice *device);
