/*
 * The driver's private tables. None is simulated: NVIDIA's own runtime library
 * (libcudart) asks for eight of them, and by the last checks that the driver is
 * NVIDIA's, so it refuses this one whatever we answer. Programs for the
 * simulated driver use the driver API.
 */
#include "cuda_api.h"

#include <stddef.h>

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
