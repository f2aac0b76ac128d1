/* Fills: one, two and four bytes wide, in one and two dimensions, blocking and not. */
#include "copy_api.h"

static CUresult fill(CUdeviceptr to, size_t pitch, uint32_t value, unsigned element_bytes,
		     size_t width, size_t height, CUstream stream, enum default_stream null)
{
	struct copy copy = copy_linear(to, 0, width * element_bytes);

	if (to % element_bytes || (height > 1 && pitch < width * element_bytes))
		return CUDA_ERROR_INVALID_VALUE;
	copy.is_fill = true;
	copy.element_bytes = element_bytes;
	copy.value = value;
	copy.height = height;
	copy.to.row_bytes = pitch;
	/* Even the calls without Async return before the fill of device memory is done. */
	return copy_submit(&copy, stream, null, COPY_RETURNS);
}

#define FILL(bits, type)                                                                           \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                    \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, NULL, LEGACY);                       \
	}                                                                                          \
	CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t count)               \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, NULL, PER_THREAD);                   \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, stream, LEGACY);                     \
	}                                                                                          \
	CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr to, type value, size_t count,             \
					     CUstream stream)                                      \
	{                                                                                          \
		return fill(to, 0, value, bits / 8, count, 1, stream, PER_THREAD);                 \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width,    \
					size_t height)                                             \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, NULL, LEGACY);              \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value,             \
					     size_t width, size_t height)                          \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, NULL, PER_THREAD);          \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,  \
					  size_t height, CUstream stream)                          \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, stream, LEGACY);            \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr to, size_t pitch, type value,           \
					       size_t width, size_t height, CUstream stream)       \
	{                                                                                          \
		return fill(to, pitch, value, bits / 8, width, height, stream, PER_THREAD);        \
	}

FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)
