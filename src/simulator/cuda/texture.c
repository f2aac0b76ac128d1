/*
 * Textures and surfaces: descriptions that are kept and told again. No kernel
 * reads through them, as no code is run.
 */
#include "array.h"
#include "driver.h"

#include <stdlib.h>

enum { OBJECT_MAGIC = 0x54455830 };

struct texture {
	uint32_t magic;
	bool is_surface;
	bool has_view;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
};

static struct texture *texture_of(unsigned long long handle, bool is_surface)
{
	struct texture *texture = (struct texture *)(uintptr_t)handle;

	return texture && texture->magic == OBJECT_MAGIC && texture->is_surface == is_surface
		       ? texture
		       : NULL;
}

static bool is_there(const CUDA_RESOURCE_DESC *resource)
{
	switch (resource->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		return array_of(resource->res.array.hArray) != NULL;
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		return resource->res.mipmap.hMipmappedArray != NULL;
	case CU_RESOURCE_TYPE_LINEAR:
		return memory_around(resource->res.linear.devPtr) != NULL;
	case CU_RESOURCE_TYPE_PITCH2D:
		return memory_around(resource->res.pitch2D.devPtr) != NULL;
	default:
		return false;
	}
}

static CUresult create(unsigned long long *handle, const struct texture *wanted)
{
	struct context *context;
	struct texture *made;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !is_there(&wanted->resource))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	made = malloc(sizeof(*made));
	if (!made)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*made = *wanted;
	made->magic = OBJECT_MAGIC;
	*handle = (uintptr_t)made;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectCreate(CUtexObject *handle, const CUDA_RESOURCE_DESC *resource,
			   const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
	struct texture wanted = {.is_surface = false, .has_view = view != NULL};

	if (!resource || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	wanted.resource = *resource;
	wanted.texture = *texture;
	if (view)
		wanted.view = *view;
	return create(handle, &wanted);
}

CUresult cuSurfObjectCreate(CUsurfObject *handle, const CUDA_RESOURCE_DESC *resource)
{
	struct texture wanted = {.is_surface = true};

	if (!resource || resource->resType != CU_RESOURCE_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	wanted.resource = *resource;
	return create(handle, &wanted);
}

static CUresult destroy(unsigned long long handle, bool is_surface)
{
	CUresult result = driver_enter_bare();
	struct texture *texture;

	if (result != CUDA_SUCCESS)
		return result;
	texture = texture_of(handle, is_surface);
	if (!texture)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	texture->magic = 0;
	free(texture);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectDestroy(CUtexObject handle)
{
	return destroy(handle, false);
}

CUresult cuSurfObjectDestroy(CUsurfObject handle)
{
	return destroy(handle, true);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject handle)
{
	const struct texture *texture = texture_of(handle, false);

	if (!resource || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = texture->resource;
	return CUDA_SUCCESS;
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject handle)
{
	const struct texture *texture = texture_of(handle, true);

	if (!resource || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = texture->resource;
	return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *description, CUtexObject handle)
{
	const struct texture *texture = texture_of(handle, false);

	if (!description || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	*description = texture->texture;
	return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle)
{
	const struct texture *texture = texture_of(handle, false);

	if (!view || !texture || !texture->has_view)
		return CUDA_ERROR_INVALID_VALUE;
	*view = texture->view;
	return CUDA_SUCCESS;
}
