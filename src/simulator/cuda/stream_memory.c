/*
 * Streams that read and write memory words, and streams' attributes. A write
 * is done by a host function at its place in the stream; a wait for a value is
 * not simulated, because nothing on the card would ever write it.
 */
#include "capture.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

struct store {
	uint64_t address;
	uint64_t value;
	size_t bytes;
};

static void do_store(void *argument)
{
	struct store *store = argument;

	memcpy((void *)(uintptr_t)store->address, &store->value, store->bytes);
	free(store);
}

static CUresult submit(CUstream handle, struct store wanted, enum default_stream null)
{
	struct context *context;
	struct stream *stream;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!memory_around(wanted.address) || wanted.address % wanted.bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_find(context, handle, null, &stream);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (stream->capture)
		return driver_leave(capture_invalidate(stream->capture));
	struct store *store = malloc(sizeof(*store));
	if (!store)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*store = wanted;
	return driver_leave(stream_call_host(
		stream, (struct host_call){.function = do_store, .argument = store}));
}

#define WRITE(bits)                                                                                \
	CUresult cuStreamWriteValue##bits##_v2(CUstream stream, CUdeviceptr address,               \
					       cuuint##bits##_t value, unsigned int flags)         \
	{                                                                                          \
		(void)flags;                                                                       \
		return submit(stream, (struct store){address, value, bits / 8}, LEGACY);           \
	}                                                                                          \
	CUresult cuStreamWriteValue##bits##_v2_ptsz(CUstream stream, CUdeviceptr address,          \
						    cuuint##bits##_t value, unsigned int flags)    \
	{                                                                                          \
		(void)flags;                                                                       \
		return submit(stream, (struct store){address, value, bits / 8}, PER_THREAD);       \
	}

WRITE(32)
WRITE(64)

/* Attributes are kept by nobody: they tune caches and priorities that are not simulated. */
CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
	(void)stream;
	(void)attribute;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	memset(value, 0, sizeof(*value));
	return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute,
				   CUstreamAttrValue *value)
{
	return cuStreamGetAttribute(stream, attribute, value);
}

CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attribute,
			      const CUstreamAttrValue *value)
{
	(void)stream;
	(void)attribute;
	return value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID attribute,
				   const CUstreamAttrValue *value)
{
	return cuStreamSetAttribute(stream, attribute, value);
}
