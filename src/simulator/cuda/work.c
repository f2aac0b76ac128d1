#include "work.h"

#include "capture.h"
#include "event.h"
#include "graph_memory.h"
#include "module.h"

static CUresult run_kernel(struct stream *stream, const struct work *work)
{
	CUresult result = work->module ? module_make_resident(work->module) : CUDA_SUCCESS;

	if (result != CUDA_SUCCESS)
		return result;
	return stream_push(stream, (struct engine_item){.kind = ENGINE_KERNEL,
							.launches = 1,
							.amount = work->ns,
							.is_programmatic = work->is_programmatic});
}

static CUresult run_copy(struct stream *stream, const struct work *work)
{
	copy_run(&work->copy);
	return stream_push(stream, (struct engine_item){.kind = ENGINE_COPY,
							.amount = copy_ns(&work->copy),
							.other = copy_bus(&work->copy)});
}

CUresult work_run(struct stream *stream, const struct work *work)
{
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return run_kernel(stream, work);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return run_copy(stream, work);
	case CU_GRAPH_NODE_TYPE_HOST:
		return stream_call_host(stream, (struct host_call){.function = work->host,
								   .argument = work->argument});
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return event_record(work->event, stream);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return event_precede(work->event, stream);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return graph_memory_begin(work->memory);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return graph_memory_end(work->memory);
	default:
		return CUDA_SUCCESS;
	}
}

CUresult work_submit(struct stream *stream, const struct work *work,
		     const CUgraphNodeParams *params)
{
	CUresult result;

	if (stream->capture)
		return capture_add(stream, work, params);
	result = capture_refuse_implicit(stream);
	return result == CUDA_SUCCESS ? work_run(stream, work) : result;
}
