/*
 * Copies between host and card take the slice's card time. What stays on the card, goes to another
 * one, or is moved by managed memory is not charged; see docs/isolation.md.
 */
#include "books/enter.h"
#include "compute/meter.h"
#include "driver/stream.h"

enum side { ON_CARD, PINNED, PAGEABLE };

/* The driver knows no pageable memory. */
static enum side side_of(uint64_t address)
{
	CUmemorytype type = CU_MEMORYTYPE_HOST;

	if (!cuda.cuPointerGetAttribute)
		return PAGEABLE;
	const CUstreamCaptureMode mode = capture_exempt();
	const CUresult result = cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
							   (CUdeviceptr)address);

	capture_restore(mode);
	if (result != CUDA_SUCCESS)
		return PAGEABLE;
	return type == CU_MEMORYTYPE_HOST ? PINNED : ON_CARD;
}

/* An end of a box. */
static enum side side_of_type(CUmemorytype type, const void *host, CUdeviceptr address)
{
	if (type == CU_MEMORYTYPE_HOST)
		return side_of((uint64_t)(uintptr_t)host);
	return type == CU_MEMORYTYPE_UNIFIED ? side_of(address) : ON_CARD;
}

static bool is_over_bus(enum side to, enum side from)
{
	return (to == ON_CARD) != (from == ON_CARD);
}

static void before(struct meter_launch *launch, enum side to, enum side from, uint64_t bytes,
		   CUstream stream)
{
	if (is_over_bus(to, from) && bytes)
		meter_before(launch,
			     estimate_copy_kind(to != ON_CARD, to + from == PAGEABLE, bytes), true,
			     stream);
}

#define HOST(pointer) side_of((uint64_t)(uintptr_t)(pointer))
#define END(box, end) side_of_type((box)->end##MemoryType, (box)->end##Host, (box)->end##Device)

/* Nothing is asked where there is no cap. */
#define BEFORE(to, from, bytes, stream)                                                            \
	struct meter_launch launch = {0};                                                          \
	if (meter_is_capped())                                                                     \
	before(&launch, to, from, bytes, stream)

#define COPIES(to, from, bytes, stream, name, parameters, arguments)                               \
	HOOK(name, parameters, arguments, BEFORE(to, from, bytes, stream),                         \
	     meter_after(&launch, result))

/* A copy to the card that is no larger returns before it is done, as does one on the card. */
enum { STAGED_BYTES = 64 * 1024 };

/* When it returns, it is done, and so is what was in front of it on the stream. */
static CUstream waited_for(const struct meter_launch *launch, CUstream stream)
{
	const bool is_to_host = launch->what >> 63;
	const uint64_t bytes = launch->what & UINT64_MAX >> 3;

	return launch->meter && (is_to_host || bytes > STAGED_BYTES) ? stream : METER_NO_STREAM;
}

#define COPIES_AND_WAITS(to, from, bytes, stream, name, parameters, arguments)                     \
	HOOK(name, parameters, arguments, BEFORE(to, from, bytes, stream); struct meter_wait wait; \
	     meter_before_wait(&wait, waited_for(&launch, stream), false),                         \
	     meter_after(&launch, result);                                                         \
	     if (result == CUDA_SUCCESS) meter_after_wait(&wait))

#define BOTH(to, from, bytes, name, parameters, arguments)                                         \
	COPIES_AND_WAITS(to, from, bytes, NULL, name, parameters, arguments)                       \
	COPIES_AND_WAITS(to, from, bytes, CU_STREAM_PER_THREAD, name##_ptds, parameters, arguments)

#define BOTH_ASYNC(to, from, bytes, name, parameters, arguments)                                   \
	COPIES(to, from, bytes, stream, name, parameters, arguments)                               \
	COPIES(to, from, bytes, stream_per_thread(stream), name##_ptsz, parameters, arguments)

#define BOX_BYTES(box) ((box) ? (uint64_t)(box)->WidthInBytes * (box)->Height : 0)
#define OF_BOX(box, end) ((box) ? END(box, end) : ON_CARD)

BOTH(side_of(to), side_of(from), bytes, cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
     (to, from, bytes))
BOTH(ON_CARD, HOST(from), bytes, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes),
     (to, from, bytes))
BOTH(HOST(to), ON_CARD, bytes, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes),
     (to, from, bytes))
BOTH(ON_CARD, HOST(from), bytes, cuMemcpyHtoA_v2,
     (CUarray to, size_t offset, const void *from, size_t bytes), (to, offset, from, bytes))
BOTH(HOST(to), ON_CARD, bytes, cuMemcpyAtoH_v2,
     (void *to, CUarray from, size_t offset, size_t bytes), (to, from, offset, bytes))
BOTH(OF_BOX(box, dst), OF_BOX(box, src), BOX_BYTES(box), cuMemcpy2D_v2, (const CUDA_MEMCPY2D *box),
     (box))
BOTH(OF_BOX(box, dst), OF_BOX(box, src), BOX_BYTES(box), cuMemcpy2DUnaligned_v2,
     (const CUDA_MEMCPY2D *box), (box))
BOTH(OF_BOX(box, dst), OF_BOX(box, src), BOX_BYTES(box) * ((box) ? (box)->Depth : 0), cuMemcpy3D_v2,
     (const CUDA_MEMCPY3D *box), (box))

BOTH_ASYNC(side_of(to), side_of(from), bytes, cuMemcpyAsync,
	   (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
	   (to, from, bytes, stream))
BOTH_ASYNC(ON_CARD, HOST(from), bytes, cuMemcpyHtoDAsync_v2,
	   (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
	   (to, from, bytes, stream))
BOTH_ASYNC(HOST(to), ON_CARD, bytes, cuMemcpyDtoHAsync_v2,
	   (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream))
BOTH_ASYNC(ON_CARD, HOST(from), bytes, cuMemcpyHtoAAsync_v2,
	   (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream),
	   (to, offset, from, bytes, stream))
BOTH_ASYNC(HOST(to), ON_CARD, bytes, cuMemcpyAtoHAsync_v2,
	   (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream),
	   (to, from, offset, bytes, stream))
BOTH_ASYNC(OF_BOX(box, dst), OF_BOX(box, src), BOX_BYTES(box), cuMemcpy2DAsync_v2,
	   (const CUDA_MEMCPY2D *box, CUstream stream), (box, stream))
BOTH_ASYNC(OF_BOX(box, dst), OF_BOX(box, src), BOX_BYTES(box) * ((box) ? (box)->Depth : 0),
	   cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *box, CUstream stream), (box, stream))

static enum side side_of_operand(const CUmemcpy3DOperand *operand)
{
	return operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER ? side_of(operand->op.ptr.ptr)
							       : ON_CARD;
}

struct batch {
	size_t count;
	const CUdeviceptr *to, *from;
	const size_t *bytes;
	const CUDA_MEMCPY3D_BATCH_OP *boxes; /* instead of the others; elements count as bytes */
};

/* Each costs two questions of the driver. The others of a batch count, wherever they are. */
enum { LOOKED_AT = 16 };

/* A batch is one piece of work: its bytes between host and card. */
static uint64_t bytes_of(const struct batch *batch)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < batch->count; i++) {
		const CUDA_MEMCPY3D_BATCH_OP *box = batch->boxes ? &batch->boxes[i] : NULL;
		const bool counts =
			i >= LOOKED_AT ||
			(box ? is_over_bus(side_of_operand(&box->dst), side_of_operand(&box->src))
			     : is_over_bus(side_of(batch->to[i]), side_of(batch->from[i])));

		if (counts)
			bytes += box ? box->extent.width * box->extent.height * box->extent.depth
				     : batch->bytes[i];
	}
	return bytes;
}

static void before_batch(struct meter_launch *launch, const struct batch *batch, CUstream stream)
{
	const uint64_t bytes = meter_is_capped() ? bytes_of(batch) : 0;

	if (bytes)
		meter_before(launch, estimate_batch_kind(bytes), true, stream);
}

#define BATCH(batch, stream, name, parameters, arguments)                                          \
	HOOK(name, parameters, arguments, struct meter_launch launch = {0};                        \
	     before_batch(&launch, batch, stream), meter_after(&launch, result))

#define BATCHES(batch, name, parameters, arguments)                                                \
	BATCH(batch, stream, name, parameters, arguments)                                          \
	BATCH(batch, stream_per_thread(stream), name##_ptsz, parameters, arguments)

#define LINEAR (&(const struct batch){to && from && bytes ? count : 0, to, from, bytes, NULL})
#define BOXES(boxes, count) (&(const struct batch){(boxes) ? (count) : 0, NULL, NULL, NULL, boxes})

BATCHES(LINEAR, cuMemcpyBatchAsync,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
	 CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds, size_t *failed,
	 CUstream stream),
	(to, from, bytes, count, attributes, firsts, kinds, failed, stream))
BATCHES(LINEAR, cuMemcpyBatchAsync_v2,
	(CUdeviceptr * to, CUdeviceptr *from, size_t *bytes, size_t count,
	 CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds, CUstream stream),
	(to, from, bytes, count, attributes, firsts, kinds, stream))
BATCHES(BOXES(operations, count), cuMemcpy3DBatchAsync,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed, unsigned long long flags,
	 CUstream stream),
	(count, operations, failed, flags, stream))
BATCHES(BOXES(operations, count), cuMemcpy3DBatchAsync_v2,
	(size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, unsigned long long flags,
	 CUstream stream),
	(count, operations, flags, stream))
BOTH_ASYNC(side_of(to), side_of(from), bytes, cuMemcpyWithAttributesAsync,
	   (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes,
	    CUstream stream),
	   (to, from, bytes, attributes, stream))
BATCHES(BOXES(operation, 1), cuMemcpy3DWithAttributesAsync,
	(CUDA_MEMCPY3D_BATCH_OP * operation, unsigned long long flags, CUstream stream),
	(operation, flags, stream))
