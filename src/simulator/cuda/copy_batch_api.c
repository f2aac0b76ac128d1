/* Copies in batches and with attributes: one after the other, in the stream. */
#include "copy_api.h"
#include "driver.h"

static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
			   size_t count, CUstream stream, enum default_stream null)
{
	CUresult result = count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = copy_submit_linear(to[i], from[i], bytes[i], stream, null, COPY_RETURNS);
	return result;
}

/* Lengths are in elements; those of memory are bytes. */
static CUDA_MEMCPY3D box_of(const CUDA_MEMCPY3D_BATCH_OP *operation)
{
	const CUextent3D *extent = &operation->extent;
	CUDA_MEMCPY3D box = {
		.WidthInBytes = extent->width, .Height = extent->height, .Depth = extent->depth};

#define END(end, name)                                                                             \
	if (operation->name.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {                                \
		box.end##MemoryType = CU_MEMORYTYPE_ARRAY;                                         \
		box.end##Array = operation->name.op.array.array;                                   \
	} else {                                                                                   \
		box.end##MemoryType = CU_MEMORYTYPE_UNIFIED;                                       \
		box.end##Device = operation->name.op.ptr.ptr;                                      \
		box.end##Pitch = operation->name.op.ptr.rowLength;                                 \
		box.end##Height = operation->name.op.ptr.layerHeight;                              \
	}
	END(src, src)
	END(dst, dst)
	return box;
}

static CUresult copy_boxes(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream stream,
			   enum default_stream null)
{
	CUresult result = count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const CUDA_MEMCPY3D box = box_of(&operations[i]);
		struct copy copy;

		result = copy_of_box(&box, &copy);
		if (result == CUDA_SUCCESS)
			result = copy_submit(&copy, stream, null, COPY_RETURNS);
	}
	return result;
}

/* The parameters that are looked at, and those that are not. */
#define ENTRIES(suffix, null)                                                                      \
	CUresult cuMemcpyBatchAsync##suffix(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,     \
					    size_t count, CUmemcpyAttributes *attributes,          \
					    size_t *firsts, size_t kinds, size_t *failed,          \
					    CUstream stream)                                       \
	{                                                                                          \
		(void)attributes, (void)firsts, (void)kinds, (void)failed;                         \
		return copy_batch(to, from, bytes, count, stream, null);                           \
	}                                                                                          \
	CUresult cuMemcpyBatchAsync_v2##suffix(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,  \
					       size_t count, CUmemcpyAttributes *attributes,       \
					       size_t *firsts, size_t kinds, CUstream stream)      \
	{                                                                                          \
		(void)attributes, (void)firsts, (void)kinds;                                       \
		return copy_batch(to, from, bytes, count, stream, null);                           \
	}                                                                                          \
	CUresult cuMemcpy3DBatchAsync##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations,    \
					      size_t *failed, unsigned long long flags,            \
					      CUstream stream)                                     \
	{                                                                                          \
		(void)failed, (void)flags;                                                         \
		return copy_boxes(operations, count, stream, null);                                \
	}                                                                                          \
	CUresult cuMemcpy3DBatchAsync_v2##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, \
						 unsigned long long flags, CUstream stream)        \
	{                                                                                          \
		(void)flags;                                                                       \
		return copy_boxes(operations, count, stream, null);                                \
	}                                                                                          \
	CUresult cuMemcpyWithAttributesAsync##suffix(CUdeviceptr to, CUdeviceptr from,             \
						     size_t bytes, CUmemcpyAttributes *attributes, \
						     CUstream stream)                              \
	{                                                                                          \
		(void)attributes;                                                                  \
		return copy_submit_linear(to, from, bytes, stream, null, COPY_RETURNS);            \
	}                                                                                          \
	CUresult cuMemcpy3DWithAttributesAsync##suffix(CUDA_MEMCPY3D_BATCH_OP *operation,          \
						       unsigned long long flags, CUstream stream)  \
	{                                                                                          \
		(void)flags;                                                                       \
		return copy_boxes(operation, 1, stream, null);                                     \
	}

ENTRIES(, LEGACY)
ENTRIES(_ptsz, PER_THREAD)
