/* The entry points of stream capture. */
#include "capture.h"

#include "event.h"

#include <stdlib.h>

static CUresult enter_stream(CUstream handle, enum default_stream null, struct stream **stream)
{
	struct context *context;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	result = stream_find(context, handle, null, stream);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	return result == CUDA_SUCCESS ? driver_leave(capture_begin(stream, mode, NULL)) : result;
}

/* CUDA 10.0, before there were modes. */
CUresult cuStreamBeginCapture(CUstream stream)
{
	return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, LEGACY);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, PER_THREAD);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	return begin(stream, mode, LEGACY);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return begin(stream, mode, PER_THREAD);
}

static CUresult begin_to_graph(CUstream handle, CUgraph graph_handle, const CUgraphNode *before,
			       size_t count, CUstreamCaptureMode mode, enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	struct graph *graph = graph_of(graph_handle);
	if (!graph || (count && !before))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = capture_begin(stream, mode, graph);
	if (result == CUDA_SUCCESS)
		result = capture_set_ends(stream, before, count);
	return driver_leave(result);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *before,
				     const CUgraphEdgeData *edges, size_t count,
				     CUstreamCaptureMode mode)
{
	(void)edges;
	return begin_to_graph(stream, graph, before, count, mode, LEGACY);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *before,
					  const CUgraphEdgeData *edges, size_t count,
					  CUstreamCaptureMode mode)
{
	(void)edges;
	return begin_to_graph(stream, graph, before, count, mode, PER_THREAD);
}

static CUresult end(CUstream handle, CUgraph *graph_handle, enum default_stream null)
{
	struct stream *stream;
	struct graph *graph;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!graph_handle)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = capture_end(stream, &graph);
	*graph_handle = (CUgraph)(void *)graph;
	return driver_leave(result);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return end(stream, graph, LEGACY);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return end(stream, graph, PER_THREAD);
}

static CUstreamCaptureStatus status_of(const struct stream *stream)
{
	if (!stream->capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return stream->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

struct capture_info {
	CUstreamCaptureStatus *status;
	cuuint64_t *id;
	CUgraph *graph;
	const CUgraphNode **before;
	const CUgraphEdgeData **edges;
	size_t *count;
};

static CUresult tell(CUstream handle, const struct capture_info *wanted, enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!wanted->status)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream->is_default ? capture_refuse_implicit(stream) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	*wanted->status = status_of(stream);
	if (*wanted->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return driver_leave(CUDA_SUCCESS);
	if (wanted->id)
		*wanted->id = stream->capture->id;
	if (wanted->graph)
		*wanted->graph = (CUgraph)(void *)stream->capture->graph;
	if (wanted->before)
		*wanted->before = (const CUgraphNode *)(void *)stream->ends.at;
	if (wanted->edges)
		*wanted->edges = NULL;
	if (wanted->count)
		*wanted->count = stream->ends.count;
	return driver_leave(CUDA_SUCCESS);
}

#define TELL(...) tell(stream, &(struct capture_info){__VA_ARGS__}, NULL_STREAM)
#define NULL_STREAM LEGACY

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	return TELL(.status = status);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return TELL(.status = status, .id = id);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **before, size_t *count)
{
	return TELL(status, id, graph, before, NULL, count);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
				   CUgraph *graph, const CUgraphNode **before,
				   const CUgraphEdgeData **edges, size_t *count)
{
	return TELL(status, id, graph, before, edges, count);
}

#undef NULL_STREAM
#define NULL_STREAM PER_THREAD

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
	return TELL(.status = status);
}

CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return TELL(.status = status, .id = id);
}

CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status,
					cuuint64_t *id, CUgraph *graph, const CUgraphNode **before,
					size_t *count)
{
	return TELL(status, id, graph, before, NULL, count);
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status,
					cuuint64_t *id, CUgraph *graph, const CUgraphNode **before,
					const CUgraphEdgeData **edges, size_t *count)
{
	return TELL(status, id, graph, before, edges, count);
}

static CUresult update(CUstream handle, const CUgraphNode *nodes, size_t count, unsigned flags,
		       enum default_stream null)
{
	struct stream *stream;
	CUresult result = enter_stream(handle, null, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!stream->capture || (count && !nodes))
		return driver_leave(stream->capture ? CUDA_ERROR_INVALID_VALUE
						    : CUDA_ERROR_ILLEGAL_STATE);
	if (flags & CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		capture_clear_ends(stream);
	return driver_leave(capture_set_ends(stream, nodes, count));
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count,
					   unsigned int flags)
{
	return update(stream, nodes, count, flags, LEGACY);
}

CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count,
						unsigned int flags)
{
	return update(stream, nodes, count, flags, PER_THREAD);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
					      const CUgraphEdgeData *edges, size_t count,
					      unsigned int flags)
{
	(void)edges;
	return update(stream, nodes, count, flags, LEGACY);
}

CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes,
						   const CUgraphEdgeData *edges, size_t count,
						   unsigned int flags)
{
	(void)edges;
	return update(stream, nodes, count, flags, PER_THREAD);
}
