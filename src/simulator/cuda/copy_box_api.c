/* Copies of two and three dimensions. */
#include "copy_api.h"

#include <string.h>

static CUDA_MEMCPY3D widen(const CUDA_MEMCPY2D *flat)
{
	CUDA_MEMCPY3D box;

	memset(&box, 0, sizeof(box));
	box.srcXInBytes = flat->srcXInBytes;
	box.srcY = flat->srcY;
	box.srcMemoryType = flat->srcMemoryType;
	box.srcHost = flat->srcHost;
	box.srcDevice = flat->srcDevice;
	box.srcArray = flat->srcArray;
	box.srcPitch = flat->srcPitch;
	box.dstXInBytes = flat->dstXInBytes;
	box.dstY = flat->dstY;
	box.dstMemoryType = flat->dstMemoryType;
	box.dstHost = flat->dstHost;
	box.dstDevice = flat->dstDevice;
	box.dstArray = flat->dstArray;
	box.dstPitch = flat->dstPitch;
	box.WidthInBytes = flat->WidthInBytes;
	box.Height = flat->Height;
	box.Depth = 1;
	return box;
}

static CUresult submit(const CUDA_MEMCPY3D *box, CUstream stream, enum default_stream null,
		       enum copy_wait wait)
{
	struct copy copy;
	CUresult result = box ? copy_of_box(box, &copy) : CUDA_ERROR_INVALID_VALUE;

	return result == CUDA_SUCCESS ? copy_submit(&copy, stream, null, wait) : result;
}

static CUresult submit_flat(const CUDA_MEMCPY2D *flat, CUstream stream, enum default_stream null,
			    enum copy_wait wait)
{
	CUDA_MEMCPY3D box;

	if (!flat)
		return CUDA_ERROR_INVALID_VALUE;
	box = widen(flat);
	return submit(&box, stream, null, wait);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *flat)
{
	return submit_flat(flat, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *flat)
{
	return submit_flat(flat, NULL, PER_THREAD, COPY_WAITS);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *flat)
{
	return submit_flat(flat, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *flat)
{
	return submit_flat(flat, NULL, PER_THREAD, COPY_WAITS);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *flat, CUstream stream)
{
	return submit_flat(flat, stream, LEGACY, COPY_RETURNS);
}

CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *flat, CUstream stream)
{
	return submit_flat(flat, stream, PER_THREAD, COPY_RETURNS);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *box)
{
	return submit(box, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *box)
{
	return submit(box, NULL, PER_THREAD, COPY_WAITS);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *box, CUstream stream)
{
	return submit(box, stream, LEGACY, COPY_RETURNS);
}

CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *box, CUstream stream)
{
	return submit(box, stream, PER_THREAD, COPY_RETURNS);
}
