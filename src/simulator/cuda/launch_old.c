/* The launch calls of CUDA 3, which set a function's block and parameters one by one. */
#include "module.h"

#include <stdlib.h>
#include <string.h>

enum { PARAMETER_BYTES = 4096 };

struct old_launch {
	unsigned block[3];
	unsigned shared_bytes;
	size_t parameter_bytes;
	unsigned char parameters[PARAMETER_BYTES];
};

/* What was set so far; a block of one thread if nothing was. NULL where memory is short. */
static struct old_launch *old_of(struct function *function)
{
	if (!function->old) {
		function->old = calloc(1, sizeof(*function->old));
		for (int i = 0; function->old && i < 3; i++)
			function->old->block[i] = 1;
	}
	return function->old;
}

static CUresult enter(CUfunction handle, struct old_launch **old)
{
	CUresult result = driver_enter_bare();
	struct function *function;

	if (result != CUDA_SUCCESS)
		return result;
	function = function_of(handle);
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	*old = old_of(function);
	return *old ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
	struct old_launch *old;
	CUresult result = enter(function, &old);

	if (result != CUDA_SUCCESS)
		return result;
	if (x <= 0 || y <= 0 || z <= 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	old->block[0] = (unsigned)x;
	old->block[1] = (unsigned)y;
	old->block[2] = (unsigned)z;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes)
{
	struct old_launch *old;
	CUresult result = enter(function, &old);

	if (result != CUDA_SUCCESS)
		return result;
	old->shared_bytes = bytes;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuParamSetSize(CUfunction function, unsigned int bytes)
{
	struct old_launch *old;
	CUresult result = enter(function, &old);

	if (result != CUDA_SUCCESS)
		return result;
	if (bytes > PARAMETER_BYTES)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	old->parameter_bytes = bytes;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuParamSetv(CUfunction function, int offset, void *value, unsigned int bytes)
{
	struct old_launch *old;
	CUresult result = enter(function, &old);

	if (result != CUDA_SUCCESS)
		return result;
	if (offset < 0 || !value || bytes > PARAMETER_BYTES ||
	    (unsigned)offset > PARAMETER_BYTES - bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(old->parameters + offset, value, bytes);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuParamSeti(CUfunction function, int offset, unsigned int value)
{
	return cuParamSetv(function, offset, &value, sizeof(value));
}

CUresult cuParamSetf(CUfunction function, int offset, float value)
{
	return cuParamSetv(function, offset, &value, sizeof(value));
}

/* Since CUDA 3.2 a texture that the module names needs no such call. */
CUresult cuParamSetTexRef(CUfunction function, int unit, CUtexref reference)
{
	struct old_launch *old;
	CUresult result = enter(function, &old);

	(void)unit;
	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(reference ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult launch(CUfunction function, int width, int height, CUstream stream)
{
	struct old_launch set;
	struct old_launch *old;
	CUresult result = enter(function, &old);

	if (result != CUDA_SUCCESS)
		return result;
	set = *old;
	driver_leave(CUDA_SUCCESS);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, set.parameters,
			 CU_LAUNCH_PARAM_BUFFER_SIZE, &set.parameter_bytes, CU_LAUNCH_PARAM_END};
	if (width <= 0 || height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	return cuLaunchKernel(function, (unsigned)width, (unsigned)height, 1, set.block[0],
			      set.block[1], set.block[2], set.shared_bytes, stream, NULL, extra);
}

CUresult cuLaunch(CUfunction function)
{
	return launch(function, 1, 1, NULL);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return launch(function, width, height, NULL);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	return launch(function, width, height, stream);
}
