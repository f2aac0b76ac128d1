#include "array.h"

#include <stdlib.h>

struct array *array_of(CUarray handle)
{
	struct array *array = (struct array *)(void *)handle;

	return array && array->magic == ARRAY_MAGIC ? array : NULL;
}

static unsigned format_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

/* Block-compressed formats: bytes of a block of 4 x 4 elements; 0 for the others. */
static unsigned block_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_BC1_UNORM:
	case CU_AD_FORMAT_BC1_UNORM_SRGB:
	case CU_AD_FORMAT_BC4_UNORM:
	case CU_AD_FORMAT_BC4_SNORM:
		return 8;
	case CU_AD_FORMAT_BC2_UNORM:
	case CU_AD_FORMAT_BC2_UNORM_SRGB:
	case CU_AD_FORMAT_BC3_UNORM:
	case CU_AD_FORMAT_BC3_UNORM_SRGB:
	case CU_AD_FORMAT_BC5_UNORM:
	case CU_AD_FORMAT_BC5_SNORM:
	case CU_AD_FORMAT_BC6H_UF16:
	case CU_AD_FORMAT_BC6H_SF16:
	case CU_AD_FORMAT_BC7_UNORM:
	case CU_AD_FORMAT_BC7_UNORM_SRGB:
		return 16;
	default:
		return 0;
	}
}

unsigned array_element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return format_bytes(shape->Format) * shape->NumChannels;
}

static uint64_t at_least_one(uint64_t extent)
{
	return extent ? extent : 1;
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	uint64_t width = shape->Width;
	uint64_t height = at_least_one(shape->Height);
	uint64_t depth = at_least_one(shape->Depth);
	uint64_t unit = array_element_bytes(shape);
	uint64_t bytes;

	if (shape->Format == CU_AD_FORMAT_NV12) { /* a byte of light, half a byte of colour */
		unit = 1;
		height += height / 2;
	} else if (block_bytes(shape->Format)) {
		unit = block_bytes(shape->Format);
		width = (width + 3) / 4;
		height = (height + 3) / 4;
	}
	return __builtin_mul_overflow(width, height, &bytes) ||
			       __builtin_mul_overflow(bytes, depth, &bytes) ||
			       __builtin_mul_overflow(bytes, unit, &bytes)
		       ? UINT64_MAX
		       : bytes;
}

static bool is_sane(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	bool is_plain =
		format_bytes(shape->Format) &&
		(shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4);

	return shape->Width &&
	       (is_plain || shape->Format == CU_AD_FORMAT_NV12 || block_bytes(shape->Format));
}

static struct array *new_array(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	struct array *array = calloc(1, sizeof(*array));

	if (array) {
		array->magic = ARRAY_MAGIC;
		array->shape = *shape;
		array->bytes = array_bytes(shape);
	}
	return array;
}

static CUresult create(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !is_sane(shape))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	struct array *array = new_array(shape);
	if (!array)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	/* A sparse array takes nothing until something is mapped into it. */
	if (!(shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
		result = memory_allocate(context, array->bytes, MEMORY_ARRAY, &array->memory);
	if (result == CUDA_SUCCESS)
		*handle = (CUarray)(void *)array;
	else
		free(array);
	return driver_leave(result);
}

CUresult cuArray3DCreate_v2(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape ? create(handle, shape) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArrayCreate_v2(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *flat)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};

	if (!flat)
		return CUDA_ERROR_INVALID_VALUE;
	shape.Width = flat->Width;
	shape.Height = flat->Height;
	shape.Format = flat->Format;
	shape.NumChannels = flat->NumChannels;
	return create(handle, &shape);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle)
{
	if (!shape)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array_of(handle))
		return CUDA_ERROR_INVALID_HANDLE;
	*shape = array_of(handle)->shape;
	return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray handle)
{
	const struct array *array = array_of(handle);

	if (!flat)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array)
		return CUDA_ERROR_INVALID_HANDLE;
	flat->Width = array->shape.Width;
	flat->Height = array->shape.Height;
	flat->Format = array->shape.Format;
	flat->NumChannels = array->shape.NumChannels;
	return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct array *array = array_of(handle);
	if (!array || array->is_level)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (array->memory)
		memory_release(array->memory);
	array->magic = 0;
	free(array);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed, CUarray handle,
				      CUdevice device)
{
	const struct array *array = array_of(handle);

	if (!needed || !array || !driver_device(device))
		return CUDA_ERROR_INVALID_VALUE;
	needed->size = memory_rounded(array->bytes);
	needed->alignment = MEMORY_BLOCK_BYTES;
	return CUDA_SUCCESS;
}
