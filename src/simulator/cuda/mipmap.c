/* Mipmapped arrays: one piece of memory for all levels, each half the size of the one before. */
#include "array.h"

#include <stdlib.h>

enum { MIPMAP_LEVELS = 32 };

struct mipmap {
	uint32_t magic;
	unsigned count;
	struct memory *memory;
	struct array levels[MIPMAP_LEVELS];
};

static size_t halved(size_t extent, unsigned times)
{
	return extent ? (extent >> times ? extent >> times : 1) : 0;
}

/* The levels that there can be: until every extent is 1. */
static unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	size_t longest = shape->Width > shape->Height ? shape->Width : shape->Height;
	unsigned levels = 1;

	if (shape->Depth > longest && !(shape->Flags & CUDA_ARRAY3D_LAYERED))
		longest = shape->Depth;
	while (longest > 1 && levels < MIPMAP_LEVELS) {
		longest /= 2;
		levels++;
	}
	return levels;
}

static uint64_t lay_out(struct mipmap *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < mipmap->count && i < MIPMAP_LEVELS; i++) {
		struct array *level = &mipmap->levels[i];

		level->magic = ARRAY_MAGIC;
		level->is_level = true;
		level->shape = *shape;
		level->shape.Width = halved(shape->Width, i);
		level->shape.Height = halved(shape->Height, i);
		if (!(shape->Flags & CUDA_ARRAY3D_LAYERED))
			level->shape.Depth = halved(shape->Depth, i);
		level->bytes = array_bytes(&level->shape);
		if (__builtin_add_overflow(bytes, level->bytes, &bytes))
			return UINT64_MAX;
	}
	return bytes;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape,
				unsigned int levels)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !shape || levels == 0 || shape->Width == 0 || array_bytes(shape) == 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	struct mipmap *mipmap = calloc(1, sizeof(*mipmap));
	if (!mipmap)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	mipmap->magic = MIPMAP_MAGIC;
	mipmap->count = levels < most_levels(shape) ? levels : most_levels(shape);
	result = memory_allocate(context, lay_out(mipmap, shape), MEMORY_ARRAY, &mipmap->memory);
	if (result == CUDA_SUCCESS)
		*handle = (CUmipmappedArray)(void *)mipmap;
	else
		free(mipmap);
	return driver_leave(result);
}

static struct mipmap *mipmap_of(CUmipmappedArray handle)
{
	struct mipmap *mipmap = (struct mipmap *)(void *)handle;

	return mipmap && mipmap->magic == MIPMAP_MAGIC ? mipmap : NULL;
}

CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray handle, unsigned int number)
{
	struct mipmap *mipmap = mipmap_of(handle);

	if (!mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!level || number >= mipmap->count)
		return CUDA_ERROR_INVALID_VALUE;
	mipmap->levels[number].memory = mipmap->memory;
	*level = (CUarray)(void *)&mipmap->levels[number];
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct mipmap *mipmap = mipmap_of(handle);
	if (!mipmap)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	memory_release(mipmap->memory);
	mipmap->magic = 0;
	free(mipmap);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needed,
					       CUmipmappedArray handle, CUdevice device)
{
	const struct mipmap *mipmap = mipmap_of(handle);

	if (!needed || !mipmap || !driver_device(device))
		return CUDA_ERROR_INVALID_VALUE;
	needed->size = memory_rounded(mipmap->memory->bytes);
	needed->alignment = MEMORY_BLOCK_BYTES;
	return CUDA_SUCCESS;
}
