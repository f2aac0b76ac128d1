/* Memory of other processes that this one has opened; see unasked/imports.c. Any thread. */
#ifndef GPUSLICE_UNASKED_IMPORTS_H
#define GPUSLICE_UNASKED_IMPORTS_H

#include "driver/driver.h"

#include <stdint.h>

/* What of NVML's figure for this process is imported memory. */
uint64_t imports_listed(int card);
/* A context has ended, and what was opened in it is closed. */
void imports_forget_context(CUcontext context);

#endif
