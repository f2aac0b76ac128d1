/* Graphs: built, captured, launched, changed; what their memory takes. */
#include "check.h"

/* An executable graph's own: 4 MiB when it is made, 2 more when it is first launched. */
#define OWN_BYTES (6 * MIB)

static CUgraphNode add_kernel(CUgraph graph, CUgraphNode before, const char *name)
{
	CUDA_KERNEL_NODE_PARAMS_v2 params = {.func = kernel(name),
					     .gridDimX = 1,
					     .gridDimY = 1,
					     .gridDimZ = 1,
					     .blockDimX = 1,
					     .blockDimY = 1,
					     .blockDimZ = 1};
	CUgraphNode node;

	OK(cuGraphAddKernelNode_v2(&node, graph, &before, before ? 1 : 0, &params));
	return node;
}

static double launch_ms(CUgraphExec exec)
{
	CUstream work = stream();
	CUevent start = event();
	CUevent end = event();

	stop_the_clock();
	spin(work, 20000000);
	OK(cuEventRecord(start, work));
	OK(cuGraphLaunch(exec, work));
	OK(cuEventRecord(end, work));
	return elapsed_ms(start, end);
}

static void a_graph_takes_the_time_of_its_kernels(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node = NULL;

	begin();
	OK(cuGraphCreate(&graph, 0));
	for (int i = 0; i < 10; i++)
		node = add_kernel(graph, node, "spin_3000");
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	CHECK_NEAR(launch_ms(exec), 30, 0.5);
	CHECK_NEAR(launch_ms(exec), 30, 0.5);
	OK(cuGraphExecDestroy(exec));
}

static void captured_work_is_not_done_but_launched(void)
{
	CUstreamCaptureStatus status;
	CUstream work;
	CUgraph graph;
	CUgraphExec exec;
	size_t count = 0;

	begin();
	work = stream();
	OK(cuStreamBeginCapture_v2(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
	spin(work, 10000000);
	spin(work, 10000000);
	OK(cuStreamIsCapturing(work, &status));
	CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuStreamEndCapture(work, &graph));
	OK(cuStreamQuery(work));
	OK(cuGraphGetNodes(graph, NULL, &count));
	CHECK_EQUAL(count, 2);
	OK(cuGraphGetEdges(graph, NULL, NULL, &count));
	CHECK_EQUAL(count, 1);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CHECK_NEAR(launch_ms(exec), 20, 0.5);
}

static void an_event_brings_another_stream_into_the_capture(void)
{
	CUstream one;
	CUstream other;
	CUevent fork;
	CUevent join;
	CUgraph graph;
	size_t count = 0;

	begin();
	one = stream();
	other = stream();
	fork = event();
	join = event();
	OK(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	spin(one, 1000);
	OK(cuEventRecord(fork, one));
	OK(cuStreamWaitEvent(other, fork, 0));
	spin(other, 1000);
	OK(cuEventRecord(join, other));
	FAILS(cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
	OK(cuStreamWaitEvent(one, join, 0));
	spin(one, 1000);
	OK(cuStreamEndCapture(one, &graph));
	OK(cuGraphGetNodes(graph, NULL, &count));
	CHECK_EQUAL(count, 3);
}

static void a_stream_that_did_not_come_back_fails_the_capture(void)
{
	CUstream one;
	CUstream other;
	CUevent fork;
	CUgraph graph;

	begin();
	one = stream();
	other = stream();
	fork = event();
	OK(cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(fork, one));
	OK(cuStreamWaitEvent(other, fork, 0));
	spin(other, 1000);
	FAILS(cuStreamEndCapture(one, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	OK(cuStreamQuery(other));
}

static void a_synchronising_call_breaks_a_global_capture(void)
{
	CUstreamCaptureStatus status;
	CUdeviceptr address;
	CUstream work;
	CUgraph graph;

	begin();
	work = stream();
	OK(cuStreamBeginCapture_v2(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
	FAILS(cuMemAlloc_v2(&address, 1024), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	OK(cuStreamIsCapturing(work, &status));
	CHECK_EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	FAILS(cuStreamEndCapture(work, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void a_relaxed_thread_may_query_events_during_a_capture(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstream work;
	CUevent before;
	CUgraph graph;

	begin();
	work = stream();
	before = event();
	OK(cuEventRecord(before, work));
	OK(cuStreamBeginCapture_v2(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK_EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuEventQuery(before));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuStreamEndCapture(work, &graph));
}

static void the_legacy_stream_is_closed_while_a_blocking_stream_captures(void)
{
	CUstream work;
	CUgraph graph;
	uint64_t ns = 1;
	void *parameters[] = {&ns};

	begin();
	OK(cuStreamCreate(&work, CU_STREAM_DEFAULT));
	OK(cuStreamBeginCapture_v2(work, CU_STREAM_CAPTURE_MODE_RELAXED));
	FAILS(cuLaunchKernel(kernel("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL),
	      CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	FAILS(cuStreamEndCapture(work, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void an_executable_takes_over_a_changed_graph(void)
{
	CUgraph graph;
	CUgraph changed;
	CUgraph other;
	CUgraphExec exec;
	CUgraphExecUpdateResultInfo info;
	CUgraphNode node;

	begin();
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphCreate(&changed, 0));
	OK(cuGraphCreate(&other, 0));
	add_kernel(graph, NULL, "spin_5000");
	add_kernel(changed, NULL, "spin_15000");
	OK(cuGraphAddEmptyNode(&node, other, NULL, 0));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphExecUpdate_v2(exec, changed, &info));
	CHECK_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	CHECK_NEAR(launch_ms(exec), 15, 0.5);
	FAILS(cuGraphExecUpdate_v2(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	CHECK_EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}

static void a_node_of_an_executable_is_changed_and_switched_off(void)
{
	CUDA_KERNEL_NODE_PARAMS_v2 params;
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;

	begin();
	OK(cuGraphCreate(&graph, 0));
	node = add_kernel(graph, NULL, "spin_5000");
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphKernelNodeGetParams_v2(node, &params));
	params.func = kernel("spin_25000");
	OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
	CHECK_NEAR(launch_ms(exec), 25, 0.5);
	OK(cuGraphNodeSetEnabled(exec, node, 0));
	CHECK_NEAR(launch_ms(exec), 0, 0.5);
}

static uint64_t graph_memory(CUgraphMem_attribute attribute)
{
	uint64_t value;

	OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
	return value;
}

static void memory_nodes_take_room_at_launch_and_keep_it_until_trimmed(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = 10 * MIB};
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode first;
	CUgraphNode second;
	size_t before;

	begin();
	alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	before = free_bytes();
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&first, graph, NULL, 0, &alloc));
	CHECK(alloc.dptr);
	OK(cuGraphAddMemFreeNode(&second, graph, &first, 1, alloc.dptr));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	launch_ms(exec);
	launch_ms(exec);
	before -= OWN_BYTES;
	CHECK_EQUAL(before - free_bytes(), 10 * MIB);
	CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 10 * MIB);
	CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
	CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 10 * MIB);
	OK(cuDeviceGraphMemTrim(0));
	CHECK_EQUAL(free_bytes(), before);
	launch_ms(exec);
	CHECK_EQUAL(before - free_bytes(), 10 * MIB);
}

static void an_executable_takes_memory_when_made_and_when_launched_until_destroyed(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphExec other;
	size_t before;

	begin();
	OK(cuGraphCreate(&graph, 0));
	add_kernel(graph, NULL, "spin_5000");
	before = free_bytes();
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	CHECK_EQUAL(before - free_bytes(), 4 * MIB);
	launch_ms(exec);
	launch_ms(exec);
	CHECK_EQUAL(before - free_bytes(), OWN_BYTES);
	OK(cuGraphInstantiateWithFlags(&other, graph, 0));
	OK(cuGraphUpload(other, NULL));
	CHECK_EQUAL(before - free_bytes(), 2 * OWN_BYTES);
	OK(cuGraphExecDestroy(other));
	OK(cuGraphExecDestroy(exec));
	CHECK_EQUAL(free_bytes(), before);
}

static void captured_allocations_outlive_their_graph_until_freed(void)
{
	CUstream work;
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr address;

	begin();
	work = stream();
	OK(cuStreamBeginCapture_v2(work, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&address, 6 * MIB, work));
	OK(cuStreamEndCapture(work, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, work));
	FAILS(cuGraphLaunch(exec, work), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 6 * MIB);
	OK(cuGraphDestroy(graph));
	OK(cuMemFreeAsync(address, work));
	CHECK_EQUAL(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
	OK(cuGraphLaunch(exec, work));
}

static void a_graph_that_does_not_fit_the_card_is_not_launched(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = {0};
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;

	begin();
	alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	alloc.bytesize = free_bytes() + 2 * MIB;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	FAILS(cuGraphLaunch(exec, stream()), CUDA_ERROR_OUT_OF_MEMORY);
}

static void memory_nodes_need_no_context_on_the_card_that_they_name(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = 10 * MIB};
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode here;
	CUgraphNode there;
	cuuint64_t reserved;

	begin();
	alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&here, graph, NULL, 0, &alloc));
	alloc.poolProps.location.id = 1;
	OK(cuGraphAddMemAllocNode(&there, graph, NULL, 0, &alloc));
	OK(cuGraphInstantiateWithFlags(&exec, graph,
				       CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	launch_ms(exec);
	for (int card = 0; card < 2; card++) {
		OK(cuDeviceGetGraphMemAttribute(card, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
						&reserved));
		CHECK_EQUAL(reserved, 10 * MIB);
	}
	OK(cuCtxSynchronize());
}

CASES(CASE(an_executable_takes_memory_when_made_and_when_launched_until_destroyed),
      CASE(a_graph_takes_the_time_of_its_kernels), CASE(captured_work_is_not_done_but_launched),
      CASE(an_event_brings_another_stream_into_the_capture),
      CASE(a_stream_that_did_not_come_back_fails_the_capture),
      CASE(a_synchronising_call_breaks_a_global_capture),
      CASE(a_relaxed_thread_may_query_events_during_a_capture),
      CASE(the_legacy_stream_is_closed_while_a_blocking_stream_captures),
      CASE(an_executable_takes_over_a_changed_graph),
      CASE(a_node_of_an_executable_is_changed_and_switched_off),
      CASE(memory_nodes_take_room_at_launch_and_keep_it_until_trimmed),
      CASE(memory_nodes_need_no_context_on_the_card_that_they_name),
      CASE(captured_allocations_outlive_their_graph_until_freed),
      CASE(a_graph_that_does_not_fit_the_card_is_not_launched));
