/*
 * Streams that read and write memory words, and streams' attributes. A write
 * is done by a host function at its place in the stream, and so is a wait: the
 * stream goes on when its process looks at it and the word is as it should be.
 */
#include "capture.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

struct word {
	uint64_t address;
	uint64_t value;
	size_t bytes;
	unsigned flags;
};

static void do_store(void *argument)
{
	struct word *word = argument;

	memcpy((void *)(uintptr_t)word->address, &word->value, word->bytes);
	free(word);
}

static void do_nothing(void *argument)
{
	free(argument);
}

static bool is_reached(const void *argument)
{
	const struct word *word = argument;
	uint64_t there =
		word->bytes == 4
			? __atomic_load_n((uint32_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE)
			: __atomic_load_n((uint64_t *)(uintptr_t)word->address, __ATOMIC_ACQUIRE);

	switch (word->flags & 3u) {
	case CU_STREAM_WAIT_VALUE_GEQ: /* as numbers that may have wrapped */
		return word->bytes == 4 ? (int32_t)(uint32_t)(there - word->value) >= 0
					: (int64_t)(there - word->value) >= 0;
	case CU_STREAM_WAIT_VALUE_EQ:
		return there == word->value;
	case CU_STREAM_WAIT_VALUE_AND:
		return (there & word->value) != 0;
	default: /* NOR */
		return (~(there | word->value) & (word->bytes == 4 ? UINT32_MAX : UINT64_MAX)) != 0;
	}
}

static CUresult queue(CUstream handle, struct word wanted, bool waits, enum default_stream null)
{
	struct host_call call = {.function = waits ? do_nothing : do_store,
				 .is_due = waits ? is_reached : NULL};
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
	struct word *word = malloc(sizeof(*word));
	if (!word)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*word = wanted;
	call.argument = word;
	return driver_leave(stream_call_host(stream, call));
}

#define WORD(name, waits, bits, null)                                                              \
	CUresult name(CUstream stream, CUdeviceptr address, cuuint##bits##_t value,                \
		      unsigned int flags)                                                          \
	{                                                                                          \
		return queue(stream, (struct word){address, value, bits / 8, flags}, waits, null); \
	}

#define WORDS(name, waits)                                                                         \
	WORD(name##32, waits, 32, LEGACY)                                                          \
	WORD(name##32_ptsz, waits, 32, PER_THREAD)                                                 \
	WORD(name##32_v2, waits, 32, LEGACY)                                                       \
	WORD(name##32_v2_ptsz, waits, 32, PER_THREAD)                                              \
	WORD(name##64, waits, 64, LEGACY)                                                          \
	WORD(name##64_ptsz, waits, 64, PER_THREAD)                                                 \
	WORD(name##64_v2, waits, 64, LEGACY)                                                       \
	WORD(name##64_v2_ptsz, waits, 64, PER_THREAD)

WORDS(cuStreamWriteValue, false)
WORDS(cuStreamWaitValue, true)

static CUresult batch(CUstream stream, unsigned int count, const CUstreamBatchMemOpParams *params,
		      enum default_stream null)
{
	CUresult result = params || !count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const bool waits = params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
				   params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
		const bool is_wide = params[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
				     params[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
		/* Waits and writes have their members at the same places. */
		const struct word word = {params[i].waitValue.address,
					  is_wide ? params[i].waitValue.value64
						  : params[i].waitValue.value,
					  is_wide ? 8 : 4, params[i].waitValue.flags};

		if (waits || params[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || is_wide)
			result = queue(stream, word, waits, null);
	}
	return result;
}

#define BATCH(name, null)                                                                          \
	CUresult name(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params,       \
		      unsigned int flags)                                                          \
	{                                                                                          \
		return flags ? CUDA_ERROR_INVALID_VALUE : batch(stream, count, params, null);      \
	}

BATCH(cuStreamBatchMemOp, LEGACY)
BATCH(cuStreamBatchMemOp_ptsz, PER_THREAD)
BATCH(cuStreamBatchMemOp_v2, LEGACY)
BATCH(cuStreamBatchMemOp_v2_ptsz, PER_THREAD)

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
