/* Arrays and mipmapped arrays: bytes by format, channels and size. */
#include "books/charge.h"
#include "books/entry.h"
#include "memory/array_bytes.h"

/* What the call came to; the handle is there to read where it succeeded. */
static CUresult keep_array(struct charge *charge, CUresult result, const CUarray *handle)
{
	if (result == CUDA_SUCCESS)
		charge_keep(charge, KIND_ARRAY, (uint64_t)(uintptr_t)*handle, charge->bytes);
	else
		charge_drop(charge);
	return result;
}

/* Threads may share all of these. */

/* Descriptors differ by call; what they have no member for is 0. */
#define SHAPE(array, ...)                                                                          \
	{                                                                                          \
		.format = (array)->Format, .channels = (array)->NumChannels,                       \
		.width = (array)->Width, .height = (array)->Height, __VA_ARGS__                    \
	}
#define IN_3D(array) .flags = (array)->Flags, .depth = (array)->Depth
#define FLAT .depth = 0

#define CREATE(name, ...)                                                                          \
	do {                                                                                       \
		struct charge charge;                                                              \
                                                                                                   \
		ENTER_TO_GIVE(pHandle, name, pHandle, pAllocateArray);                             \
		if (!pAllocateArray)                                                               \
			return cuda.name(pHandle, pAllocateArray);                                 \
		const struct array_shape shape = SHAPE(pAllocateArray, __VA_ARGS__);               \
		const CUresult result = charge_current(&charge, array_bytes(&shape));              \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		return keep_array(&charge, cuda.name(pHandle, pAllocateArray), pHandle);           \
	} while (0)

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	CREATE(cuArrayCreate_v2, FLAT);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
	CREATE(cuArrayCreate, FLAT);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	CREATE(cuArray3DCreate_v2, IN_3D(pAllocateArray));
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
	CREATE(cuArray3DCreate, IN_3D(pAllocateArray));
}

CUresult cuArrayDestroy(CUarray hArray)
{
	struct charge_taken taken;

	ENTER(cuArrayDestroy, hArray);
	charge_take(&taken, KIND_ARRAY, (uint64_t)(uintptr_t)hArray);
	const CUresult result = cuda.cuArrayDestroy(hArray);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
				const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
				unsigned int numMipmapLevels)
{
	struct charge charge;

	ENTER_TO_GIVE(pHandle, cuMipmappedArrayCreate, pHandle, pMipmappedArrayDesc,
		      numMipmapLevels);
	if (!pMipmappedArrayDesc)
		return cuda.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
	const struct array_shape shape = SHAPE(pMipmappedArrayDesc, IN_3D(pMipmappedArrayDesc));
	CUresult result = charge_current(&charge, array_mipmap_bytes(&shape, numMipmapLevels));

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
	if (result == CUDA_SUCCESS)
		charge_keep(&charge, KIND_MIPMAP, (uint64_t)(uintptr_t)*pHandle, charge.bytes);
	else
		charge_drop(&charge);
	return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	struct charge_taken taken;

	ENTER(cuMipmappedArrayDestroy, hMipmappedArray);
	charge_take(&taken, KIND_MIPMAP, (uint64_t)(uintptr_t)hMipmappedArray);
	const CUresult result = cuda.cuMipmappedArrayDestroy(hMipmappedArray);

	charge_taken_done(&taken, result == CUDA_SUCCESS);
	return result;
}
