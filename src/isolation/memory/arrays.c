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

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	struct charge charge;

	ENTER_TO_GIVE(pHandle, cuArrayCreate_v2, pHandle, pAllocateArray);
	if (!pAllocateArray)
		return cuda.cuArrayCreate_v2(pHandle, pAllocateArray);
	const struct array_shape shape = {.format = pAllocateArray->Format,
					  .channels = pAllocateArray->NumChannels,
					  .width = pAllocateArray->Width,
					  .height = pAllocateArray->Height};
	const CUresult result = charge_current(&charge, array_bytes(&shape));

	if (result != CUDA_SUCCESS)
		return result;
	return keep_array(&charge, cuda.cuArrayCreate_v2(pHandle, pAllocateArray), pHandle);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
	struct charge charge;

	ENTER_TO_GIVE(pHandle, cuArrayCreate, pHandle, pAllocateArray);
	if (!pAllocateArray)
		return cuda.cuArrayCreate(pHandle, pAllocateArray);
	const struct array_shape shape = {.format = pAllocateArray->Format,
					  .channels = pAllocateArray->NumChannels,
					  .width = pAllocateArray->Width,
					  .height = pAllocateArray->Height};
	const CUresult result = charge_current(&charge, array_bytes(&shape));

	if (result != CUDA_SUCCESS)
		return result;
	return keep_array(&charge, cuda.cuArrayCreate(pHandle, pAllocateArray), pHandle);
}

static struct array_shape shape_of_3d(const CUDA_ARRAY3D_DESCRIPTOR *array)
{
	return (struct array_shape){.format = array->Format,
				    .channels = array->NumChannels,
				    .flags = array->Flags,
				    .width = array->Width,
				    .height = array->Height,
				    .depth = array->Depth};
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	struct charge charge;

	ENTER_TO_GIVE(pHandle, cuArray3DCreate_v2, pHandle, pAllocateArray);
	if (!pAllocateArray)
		return cuda.cuArray3DCreate_v2(pHandle, pAllocateArray);
	const struct array_shape shape = shape_of_3d(pAllocateArray);
	const CUresult result = charge_current(&charge, array_bytes(&shape));

	if (result != CUDA_SUCCESS)
		return result;
	return keep_array(&charge, cuda.cuArray3DCreate_v2(pHandle, pAllocateArray), pHandle);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
	struct charge charge;

	ENTER_TO_GIVE(pHandle, cuArray3DCreate, pHandle, pAllocateArray);
	if (!pAllocateArray)
		return cuda.cuArray3DCreate(pHandle, pAllocateArray);
	const struct array_shape shape = {.format = pAllocateArray->Format,
					  .channels = pAllocateArray->NumChannels,
					  .flags = pAllocateArray->Flags,
					  .width = pAllocateArray->Width,
					  .height = pAllocateArray->Height,
					  .depth = pAllocateArray->Depth};
	const CUresult result = charge_current(&charge, array_bytes(&shape));

	if (result != CUDA_SUCCESS)
		return result;
	return keep_array(&charge, cuda.cuArray3DCreate(pHandle, pAllocateArray), pHandle);
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
	const struct array_shape shape = shape_of_3d(pMipmappedArrayDesc);
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
