/* The process list with names, which only the private table of nvidia-smi asks for. */
#ifndef GPU_SIMULATOR_NVML_PROCESSES_H
#define GPU_SIMULATOR_NVML_PROCESSES_H

#include "call_frame.h"

/* `count` holds the room in entries and becomes the number found. */
nvmlReturn_t list_named_processes(nvmlDevice_t device, uint32_t kind, unsigned *count,
				  void *entries);

#endif
