/* Linear copies. Device and host share one address space, so most of them are the same. */
#include "array.h"
#include "capture.h"
#include "copy_api.h"

static CUgraphNodeParams params_of(const struct copy *copy)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUDA_MEMCPY3D *box = &params.memcpy.copyParams;

	if (copy->is_fill) {
		params.type = CU_GRAPH_NODE_TYPE_MEMSET;
		params.memset.dst = copy->to.address;
		params.memset.pitch = copy->to.row_bytes;
		params.memset.value = copy->value;
		params.memset.elementSize = copy->element_bytes;
		params.memset.width = copy->width_bytes / copy->element_bytes;
		params.memset.height = copy->height;
		return params;
	}
	box->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
	box->srcDevice = copy->from.address;
	box->srcPitch = copy->from.row_bytes;
	box->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
	box->dstDevice = copy->to.address;
	box->dstPitch = copy->to.row_bytes;
	box->WidthInBytes = copy->width_bytes;
	box->Height = copy->height;
	box->Depth = copy->depth;
	return params;
}

/* A copy on the card does not wait for it, nor does one to the card of up to 64 KiB. */
enum { STAGED_BYTES = 64 * 1024 };

static bool returns_early(const struct copy *copy)
{
	const enum engine_bus bus = copy_bus(copy);

	return bus == ENGINE_ON_CARD ||
	       (bus == ENGINE_TO_CARD &&
		copy->width_bytes * copy->height * copy->depth <= STAGED_BYTES);
}

static CUresult submit(const struct copy *copy, struct stream *stream, enum copy_wait wait)
{
	struct work work = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *copy};
	CUgraphNodeParams params = params_of(copy);
	CUresult result = wait == COPY_WAITS ? capture_refuse_unsafe() : CUDA_SUCCESS;

	work.type = params.type;
	if (result == CUDA_SUCCESS)
		result = work_submit(stream, &work, &params);
	if (result == CUDA_SUCCESS && wait == COPY_WAITS && !returns_early(copy))
		stream_wait(stream);
	return result;
}

CUresult copy_submit(const struct copy *copy, CUstream handle, enum default_stream null,
		     enum copy_wait wait)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (copy->width_bytes == 0)
		return driver_leave(CUDA_SUCCESS);
	if (!copy->to.address || (!copy->is_fill && !copy->from.address))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_find(context, handle, null, &stream);
	if (result == CUDA_SUCCESS)
		result = submit(copy, stream, wait);
	return driver_leave(result);
}

CUresult copy_submit_linear(uint64_t to, uint64_t from, size_t bytes, CUstream stream,
			    enum default_stream null, enum copy_wait wait)
{
	struct copy copy = copy_linear(to, from, bytes);

	return copy_submit(&copy, stream, null, wait);
}

#define HOST(pointer) ((uint64_t)(uintptr_t)(pointer))

/* The blocking ones: name, parameters, where to, where from. */
#define COPY(name, to_type, from_type, to_address, from_address)                                   \
	CUresult name(to_type to, from_type from, size_t bytes)                                    \
	{                                                                                          \
		return copy_submit_linear(to_address, from_address, bytes, NULL, LEGACY,           \
					  COPY_WAITS);                                             \
	}                                                                                          \
	CUresult name##_ptds(to_type to, from_type from, size_t bytes)                             \
	{                                                                                          \
		return copy_submit_linear(to_address, from_address, bytes, NULL, PER_THREAD,       \
					  COPY_WAITS);                                             \
	}

#define COPY_ASYNC(name, to_type, from_type, to_address, from_address)                             \
	CUresult name(to_type to, from_type from, size_t bytes, CUstream stream)                   \
	{                                                                                          \
		return copy_submit_linear(to_address, from_address, bytes, stream, LEGACY,         \
					  COPY_RETURNS);                                           \
	}                                                                                          \
	CUresult name##_ptsz(to_type to, from_type from, size_t bytes, CUstream stream)            \
	{                                                                                          \
		return copy_submit_linear(to_address, from_address, bytes, stream, PER_THREAD,     \
					  COPY_RETURNS);                                           \
	}

COPY(cuMemcpy, CUdeviceptr, CUdeviceptr, to, from)
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *, to, HOST(from))
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr, HOST(to), from)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, to, from)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, to, from)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, to, HOST(from))
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, HOST(to), from)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, to, from)

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
		      CUcontext from_context, size_t bytes)
{
	(void)to_context;
	(void)from_context;
	return cuMemcpy(to, from, bytes);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			   CUcontext from_context, size_t bytes)
{
	(void)to_context;
	(void)from_context;
	return cuMemcpy_ptds(to, from, bytes);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
			   CUcontext from_context, size_t bytes, CUstream stream)
{
	(void)to_context;
	(void)from_context;
	return cuMemcpyAsync(to, from, bytes, stream);
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				CUcontext from_context, size_t bytes, CUstream stream)
{
	(void)to_context;
	(void)from_context;
	return cuMemcpyAsync_ptsz(to, from, bytes, stream);
}

/* The bytes of an array from an offset; 0 when it is none. */
static uint64_t inside(CUarray handle, size_t offset)
{
	const struct array *array = array_of(handle);

	return array && array->memory && offset <= array->bytes ? array->memory->address + offset
								: 0;
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes)
{
	return copy_submit_linear(inside(to, offset), HOST(from), bytes, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes)
{
	return copy_submit_linear(HOST(to), inside(from, offset), bytes, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes)
{
	return copy_submit_linear(inside(to, offset), from, bytes, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes)
{
	return copy_submit_linear(to, inside(from, offset), bytes, NULL, LEGACY, COPY_WAITS);
}
