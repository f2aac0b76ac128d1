/* Memory of another process, mapped here: what names it, and how it comes and goes. */
#ifndef GPUSIM_IMPORT_H
#define GPUSIM_IMPORT_H

#include "memory.h"

/* What the 64 bytes of a CUipcMemHandle or CUmemPoolPtrExportData say. */
struct ticket {
	uint32_t magic;
	int32_t pid;
	int32_t file; /* the exporter's memory file */
	uint32_t card;
	uint64_t offset;
	uint64_t span_bytes;
	uint64_t inside; /* from the start of the span to the allocation */
	uint64_t bytes;
	uint64_t pool; /* the exporter's number of it; 0: none */
	uint64_t reserved;
};

_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "a ticket is a handle");
_Static_assert(sizeof(struct ticket) == sizeof(CUmemPoolPtrExportData), "and a pool's pointer");

/* All under the process's lock. */
void import_describe(const struct memory *memory, struct ticket *ticket);
CUresult import_map(struct device *device, enum memory_kind kind, const struct ticket *ticket,
		    CUdeviceptr *address);
CUresult import_drop(struct memory *memory);

#endif
