/* Texture references, which CUDA 12 took away: what is set of one is what it tells. */
#include "array.h"
#include "driver.h"
#include "module.h"

#include <stdlib.h>

enum { REFERENCE_MAGIC = 0x54524630 };

struct reference {
	uint32_t magic;
	CUarray array;
	CUmipmappedArray mipmapped;
	CUdeviceptr address;
	CUarray_format format;
	int channels;
	CUaddress_mode modes[3];
	CUfilter_mode filter, mipmap_filter;
	float bias, least_level, most_level, border[4];
	int anisotropy;
	unsigned flags;
};

static struct reference *reference_of(CUtexref handle)
{
	struct reference *reference = (struct reference *)(void *)handle;

	return reference && reference->magic == REFERENCE_MAGIC ? reference : NULL;
}

CUresult cuTexRefCreate(CUtexref *handle)
{
	struct reference *made;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	made = calloc(1, sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->magic = REFERENCE_MAGIC;
	*handle = (CUtexref)(void *)made;
	return CUDA_SUCCESS;
}

CUresult cuTexRefDestroy(CUtexref handle)
{
	struct reference *reference = reference_of(handle);

	if (!reference)
		return CUDA_ERROR_INVALID_VALUE;
	reference->magic = 0;
	free(reference);
	return CUDA_SUCCESS;
}

/* Of a module: a new one each time, as nothing is read through it. It stays until the process ends.
 */
CUresult cuModuleGetTexRef(CUtexref *handle, CUmodule module, const char *name)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !name || !module_of(module))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!image_variable(module_of(module)->image, name))
		return driver_leave(CUDA_ERROR_NOT_FOUND);
	return driver_leave(cuTexRefCreate(handle));
}

CUresult cuModuleGetSurfRef(CUsurfref *handle, CUmodule module, const char *name)
{
	return cuModuleGetTexRef((CUtexref *)(void *)handle, module, name);
}

CUresult cuTexRefSetArray(CUtexref handle, CUarray array, unsigned int flags)
{
	struct reference *reference = reference_of(handle);
	const struct array *shape = array_of(array);

	if (!reference || !shape || flags != CU_TRSA_OVERRIDE_FORMAT)
		return CUDA_ERROR_INVALID_VALUE;
	reference->array = array;
	reference->format = shape->shape.Format;
	reference->channels = (int)shape->shape.NumChannels;
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress_v2(size_t *offset, CUtexref handle, CUdeviceptr address, size_t bytes)
{
	struct reference *reference = reference_of(handle);

	(void)bytes;
	if (!reference)
		return CUDA_ERROR_INVALID_VALUE;
	reference->address = address;
	if (offset)
		*offset = 0;
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR *shape,
				 CUdeviceptr address, size_t pitch)
{
	struct reference *reference = reference_of(handle);

	(void)pitch;
	if (!reference || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	reference->address = address;
	reference->format = shape->Format;
	reference->channels = (int)shape->NumChannels;
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels)
{
	struct reference *reference = reference_of(handle);

	if (!reference)
		return CUDA_ERROR_INVALID_VALUE;
	reference->format = format;
	reference->channels = channels;
	return CUDA_SUCCESS;
}

CUresult cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref handle)
{
	const struct reference *reference = reference_of(handle);

	if (!reference)
		return CUDA_ERROR_INVALID_VALUE;
	if (format)
		*format = reference->format;
	if (channels)
		*channels = reference->channels;
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode)
{
	if (!reference_of(handle) || dimension < 0 || dimension > 2)
		return CUDA_ERROR_INVALID_VALUE;
	reference_of(handle)->modes[dimension] = mode;
	return CUDA_SUCCESS;
}

CUresult cuTexRefGetAddressMode(CUaddress_mode *mode, CUtexref handle, int dimension)
{
	if (!mode || !reference_of(handle) || dimension < 0 || dimension > 2)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = reference_of(handle)->modes[dimension];
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float most)
{
	if (!reference_of(handle))
		return CUDA_ERROR_INVALID_VALUE;
	reference_of(handle)->least_level = least;
	reference_of(handle)->most_level = most;
	return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref handle)
{
	if (!least || !most || !reference_of(handle))
		return CUDA_ERROR_INVALID_VALUE;
	*least = reference_of(handle)->least_level;
	*most = reference_of(handle)->most_level;
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetBorderColor(CUtexref handle, float *color)
{
	for (int i = 0; i < 4; i++) {
		if (!color || !reference_of(handle))
			return CUDA_ERROR_INVALID_VALUE;
		reference_of(handle)->border[i] = color[i];
	}
	return CUDA_SUCCESS;
}

CUresult cuTexRefGetBorderColor(float *color, CUtexref handle)
{
	for (int i = 0; i < 4; i++) {
		if (!color || !reference_of(handle))
			return CUDA_ERROR_INVALID_VALUE;
		color[i] = reference_of(handle)->border[i];
	}
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray array, unsigned int flags)
{
	if (!reference_of(handle) || !array || flags != CU_TRSA_OVERRIDE_FORMAT)
		return CUDA_ERROR_INVALID_VALUE;
	reference_of(handle)->mipmapped = array;
	return CUDA_SUCCESS;
}

CUresult cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned int most)
{
	if (!reference_of(handle))
		return CUDA_ERROR_INVALID_VALUE;
	reference_of(handle)->anisotropy = (int)most;
	return CUDA_SUCCESS;
}

/* What has one value. */
#define SETTER(name, type, member)                                                                 \
	CUresult cuTexRefSet##name(CUtexref handle, type value)                                    \
	{                                                                                          \
		if (!reference_of(handle))                                                         \
			return CUDA_ERROR_INVALID_VALUE;                                           \
		reference_of(handle)->member = value;                                              \
		return CUDA_SUCCESS;                                                               \
	}

#define GETTER(name, type, member)                                                                 \
	CUresult cuTexRefGet##name(type *value, CUtexref handle)                                   \
	{                                                                                          \
		if (!value || !reference_of(handle))                                               \
			return CUDA_ERROR_INVALID_VALUE;                                           \
		*value = reference_of(handle)->member;                                             \
		return CUDA_SUCCESS;                                                               \
	}

SETTER(FilterMode, CUfilter_mode, filter)
SETTER(MipmapFilterMode, CUfilter_mode, mipmap_filter)
SETTER(MipmapLevelBias, float, bias)
SETTER(Flags, unsigned int, flags)
GETTER(Address_v2, CUdeviceptr, address)
GETTER(Array, CUarray, array)
GETTER(MipmappedArray, CUmipmappedArray, mipmapped)
GETTER(FilterMode, CUfilter_mode, filter)
GETTER(MipmapFilterMode, CUfilter_mode, mipmap_filter)
GETTER(MipmapLevelBias, float, bias)
GETTER(MaxAnisotropy, int, anisotropy)
GETTER(Flags, unsigned int, flags)
