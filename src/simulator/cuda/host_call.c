/* Functions of the program that run when a stream gets there. */
#include "capture.h"
#include "work.h"

static CUresult call_host(CUstream handle, struct host_call call, enum default_stream null)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!call.function && !call.callback)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_find(context, handle, null, &stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (call.callback)
		return driver_leave(stream->capture ? capture_invalidate(stream->capture)
						    : stream_call_host(stream, call));
	struct work work = {
		.type = CU_GRAPH_NODE_TYPE_HOST, .host = call.function, .argument = call.argument};
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
	params.host.fn = call.function;
	params.host.userData = call.argument;
	return driver_leave(work_submit(stream, &work, &params));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
	return call_host(stream, (struct host_call){.function = function, .argument = argument},
			 LEGACY);
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *argument)
{
	return call_host(stream, (struct host_call){.function = function, .argument = argument},
			 PER_THREAD);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *argument,
			     unsigned int flags)
{
	struct host_call call = {.callback = callback, .argument = argument, .handle = stream};

	return flags ? CUDA_ERROR_INVALID_VALUE : call_host(stream, call, LEGACY);
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *argument,
				  unsigned int flags)
{
	struct host_call call = {.callback = callback, .argument = argument, .handle = stream};

	return flags ? CUDA_ERROR_INVALID_VALUE : call_host(stream, call, PER_THREAD);
}
