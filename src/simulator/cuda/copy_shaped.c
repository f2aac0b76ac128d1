/* Copies of boxes between host, device and arrays. */
#include "array.h"
#include "copy.h"

#include <string.h>

/* One end of a CUDA_MEMCPY3D: its fields have the same names with src and dst in front. */
struct end {
	CUmemorytype type;
	uint64_t address; /* host or device */
	CUarray array;
	uint64_t x_bytes, y, z;
	uint64_t pitch, height;
};

static CUresult side_of_array(const struct end *end, struct side *side)
{
	const struct array *array = array_of(end->array);
	uint64_t row_bytes;

	if (!array || !array->memory)
		return CUDA_ERROR_INVALID_VALUE;
	row_bytes = array->shape.Width * array_element_bytes(&array->shape);
	side->row_bytes = row_bytes;
	side->plane_bytes = row_bytes * (array->shape.Height ? array->shape.Height : 1);
	side->address = array->memory->address + end->x_bytes + end->y * row_bytes +
			end->z * side->plane_bytes;
	return CUDA_SUCCESS;
}

static CUresult side_of(const struct end *end, uint64_t width_bytes, uint64_t height,
			struct side *side)
{
	memset(side, 0, sizeof(*side));
	if (end->type == CU_MEMORYTYPE_ARRAY)
		return side_of_array(end, side);
	if (end->type != CU_MEMORYTYPE_HOST && end->type != CU_MEMORYTYPE_DEVICE &&
	    end->type != CU_MEMORYTYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	side->row_bytes = end->pitch ? end->pitch : width_bytes;
	side->plane_bytes = side->row_bytes * (end->height ? end->height : height);
	if (!end->address || side->row_bytes < width_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	side->address =
		end->address + end->x_bytes + end->y * side->row_bytes + end->z * side->plane_bytes;
	side->is_host = end->type == CU_MEMORYTYPE_HOST;
	return CUDA_SUCCESS;
}

#define END(box, side)                                                                             \
	((struct end){.type = (box)->side##MemoryType,                                             \
		      .address = (box)->side##MemoryType == CU_MEMORYTYPE_HOST                     \
					 ? (uint64_t)(uintptr_t)(box)->side##Host                  \
					 : (box)->side##Device,                                    \
		      .array = (box)->side##Array,                                                 \
		      .x_bytes = (box)->side##XInBytes,                                            \
		      .y = (box)->side##Y,                                                         \
		      .z = (box)->side##Z,                                                         \
		      .pitch = (box)->side##Pitch,                                                 \
		      .height = (box)->side##Height})

CUresult copy_of_box(const CUDA_MEMCPY3D *box, struct copy *copy)
{
	struct end from = END(box, src);
	struct end to = END(box, dst);
	CUresult result;

	memset(copy, 0, sizeof(*copy));
	copy->width_bytes = box->WidthInBytes;
	copy->height = box->Height ? box->Height : 1;
	copy->depth = box->Depth ? box->Depth : 1;
	result = side_of(&from, copy->width_bytes, copy->height, &copy->from);
	return result == CUDA_SUCCESS ? side_of(&to, copy->width_bytes, copy->height, &copy->to)
				      : result;
}
