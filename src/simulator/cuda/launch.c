/* Kernels are started: every entry point that makes the card work. */
#include "library.h"
#include "module.h"
#include "settings.h"
#include "work.h"

static bool is_sane(const CUlaunchConfig *config)
{
	uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;

	return config->gridDimX && config->gridDimY && config->gridDimZ && threads &&
	       threads <= 1024;
}

static CUgraphNodeParams node_params(const CUlaunchConfig *config, const void *handle,
				     void **parameters, void **extra)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};

	params.kernel = (CUDA_KERNEL_NODE_PARAMS_v3){
		.func = (CUfunction)(uintptr_t)handle,
		.gridDimX = config->gridDimX,
		.gridDimY = config->gridDimY,
		.gridDimZ = config->gridDimZ,
		.blockDimX = config->blockDimX,
		.blockDimY = config->blockDimY,
		.blockDimZ = config->blockDimZ,
		.sharedMemBytes = config->sharedMemBytes,
		.kernelParams = parameters,
		.extra = extra,
	};
	return params;
}

static bool is_programmatic(const CUlaunchConfig *config)
{
	for (unsigned i = 0; config->attrs && i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
		    config->attrs[i].value.programmaticStreamSerializationAllowed)
			return true;
	return false;
}

static CUresult submit(const CUlaunchConfig *config, const void *handle, void **parameters,
		       void **extra, struct stream *stream)
{
	const struct function *function = function_of(handle);
	struct work work = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
	CUgraphNodeParams params;
	CUresult result = function_module(function, stream->context, &work.module);

	if (result != CUDA_SUCCESS)
		return result;
	work.ns = function_duration_ns(function, parameters, extra);
	work.is_programmatic = is_programmatic(config);
	if (!stream->capture)
		return work_submit(stream, &work, NULL);
	params = node_params(config, handle, parameters, extra);
	return work_submit(stream, &work, &params);
}

static CUresult launch(const CUlaunchConfig *config, const void *handle, void **parameters,
		       void **extra, enum default_stream null)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter_launch(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!function_of(handle))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!config || !is_sane(config) || (parameters && extra))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_find(context, config->hStream, null, &stream);
	if (result == CUDA_SUCCESS)
		result = submit(config, handle, parameters, extra, stream);
	if (result == CUDA_SUCCESS && setting_number("CUDA_LAUNCH_BLOCKING", 0))
		stream_wait(stream);
	return driver_leave(result);
}

#define CONFIG                                                                                     \
	(&(CUlaunchConfig){.gridDimX = grid_x,                                                     \
			   .gridDimY = grid_y,                                                     \
			   .gridDimZ = grid_z,                                                     \
			   .blockDimX = block_x,                                                   \
			   .blockDimY = block_y,                                                   \
			   .blockDimZ = block_z,                                                   \
			   .sharedMemBytes = shared_bytes,                                         \
			   .hStream = stream})

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **parameters, void **extra)
{
	return launch(CONFIG, function, parameters, extra, LEGACY);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
			     unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			     unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			     void **parameters, void **extra)
{
	return launch(CONFIG, function, parameters, extra, PER_THREAD);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
			  void **extra)
{
	return launch(config, function, parameters, extra, LEGACY);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
			       void **extra)
{
	return launch(config, function, parameters, extra, PER_THREAD);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
				   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
				   void **parameters)
{
	return launch(CONFIG, function, parameters, NULL, LEGACY);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x,
					unsigned int grid_y, unsigned int grid_z,
					unsigned int block_x, unsigned int block_y,
					unsigned int block_z, unsigned int shared_bytes,
					CUstream stream, void **parameters)
{
	return launch(CONFIG, function, parameters, NULL, PER_THREAD);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
					      unsigned int flags)
{
	CUresult result = launches && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	if (flags > 3)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const CUDA_LAUNCH_PARAMS *one = &launches[i];

		result = cuLaunchCooperativeKernel(one->function, one->gridDimX, one->gridDimY,
						   one->gridDimZ, one->blockDimX, one->blockDimY,
						   one->blockDimZ, one->sharedMemBytes,
						   one->hStream, one->kernelParams);
	}
	return result;
}
