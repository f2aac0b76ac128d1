/* stand-in until the table is known better: see nvml_private in the next change */
#include "nvml_entry.h"

nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
	NVML_ENTER(nvmlInternalGetExportTable, table, id);
	return nvml.nvmlInternalGetExportTable(table, id);
}
