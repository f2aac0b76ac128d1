/* Virtual memory management: physical memory by handle, mapped where the program wants it. */
#ifndef GPUSIM_PHYSICAL_H
#define GPUSIM_PHYSICAL_H

#include "driver.h"

enum { PHYSICAL_MAGIC = 0x50485930 };

struct physical {
	uint32_t magic;
	unsigned handles;  /* that the program holds */
	unsigned mappings; /* each keeps the memory as well */
	uint64_t bytes;
	uint64_t charged_bytes; /* 0 for host memory and imports */
	int file;               /* its own, when it can be exported; else -1 */
	uint64_t offset;        /* in the memory file, or 0 in its own */
	CUmemAllocationProp properties;
	struct device *device; /* NULL for host memory */
};

/* What physical memory comes in: 2 MiB, or GPU_SIMULATOR_GRANULARITY_BYTES. Any thread. */
uint64_t physical_granularity(void);

/* All under the process's lock. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);
/* Frees it when neither handle nor mapping is left. */
void physical_put(struct physical *physical);
int physical_file(const struct physical *physical);

#endif
