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

/* Between devices: the addresses say whose they are, so the contexts add nothing. */
static CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER *peer)
{
	CUDA_MEMCPY3D box;

	memset(&box, 0, sizeof(box));
	box.srcXInBytes = peer->srcXInBytes;
	box.srcY = peer->srcY;
	box.srcZ = peer->srcZ;
	box.srcMemoryType = peer->srcMemoryType;
	box.srcHost = peer->srcHost;
	box.srcDevice = peer->srcDevice;
	box.srcArray = peer->srcArray;
	box.srcPitch = peer->srcPitch;
	box.srcHeight = peer->srcHeight;
	box.dstXInBytes = peer->dstXInBytes;
	box.dstY = peer->dstY;
	box.dstZ = peer->dstZ;
	box.dstMemoryType = peer->dstMemoryType;
	box.dstHost = peer->dstHost;
	box.dstDevice = peer->dstDevice;
	box.dstArray = peer->dstArray;
	box.dstPitch = peer->dstPitch;
	box.dstHeight = peer->dstHeight;
	box.WidthInBytes = peer->WidthInBytes;
	box.Height = peer->Height;
	box.Depth = peer->Depth;
	return box;
}

static CUresult submit_peer(const CUDA_MEMCPY3D_PEER *peer, CUstream stream,
			    enum default_stream null, enum copy_wait wait)
{
	CUDA_MEMCPY3D box;

	if (!peer)
		return CUDA_ERROR_INVALID_VALUE;
	box = without_contexts(peer);
	return submit(&box, stream, null, wait);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *peer)
{
	return submit_peer(peer, NULL, LEGACY, COPY_WAITS);
}

CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *peer)
{
	return submit_peer(peer, NULL, PER_THREAD, COPY_WAITS);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *peer, CUstream stream)
{
	return submit_peer(peer, stream, LEGACY, COPY_RETURNS);
}

CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *peer, CUstream stream)
{
	return submit_peer(peer, stream, PER_THREAD, COPY_RETURNS);
}
