#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_of(CUgraph handle)
{
	struct graph *graph = (struct graph *)(void *)handle;

	return graph && graph->magic == GRAPH_MAGIC ? graph : NULL;
}

struct graph_node *node_of(CUgraphNode handle)
{
	struct graph_node *node = (struct graph_node *)(void *)handle;

	return node && node->magic == NODE_MAGIC ? node : NULL;
}

struct graph *graph_new(void)
{
	struct graph *graph = calloc(1, sizeof(*graph));

	if (graph) {
		graph->magic = GRAPH_MAGIC;
		graph->last = &graph->nodes;
	}
	return graph;
}

static void free_node(struct graph_node *node)
{
	if (node->child)
		graph_free(node->child);
	if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		graph_memory_drop(node->work.memory);
	node->magic = 0;
	free(node->before);
	free(node);
}

void graph_free(struct graph *graph)
{
	while (graph->nodes) {
		struct graph_node *node = graph->nodes;

		graph->nodes = node->next;
		free_node(node);
	}
	user_references_drop(&graph->user_objects);
	graph->magic = 0;
	free(graph);
}

bool nodes_add(struct graph_node ***nodes, size_t *count, struct graph_node *node)
{
	struct graph_node **grown;

	for (size_t i = 0; i < *count; i++) {
		if ((*nodes)[i] == node)
			return true;
	}
	grown = realloc(*nodes, (*count + 1) * sizeof(struct graph_node *));
	if (!grown)
		return false;
	grown[(*count)++] = node;
	*nodes = grown;
	return true;
}

bool node_add_before(struct graph_node *node, struct graph_node *before)
{
	return nodes_add(&node->before, &node->before_count, before);
}

bool node_remove_before(struct graph_node *node, const struct graph_node *before)
{
	for (size_t i = 0; i < node->before_count; i++) {
		if (node->before[i] != before)
			continue;
		node->before[i] = node->before[--node->before_count];
		return true;
	}
	return false;
}

static struct graph_node *new_node(struct graph *graph)
{
	struct graph_node *node = calloc(1, sizeof(*node));

	if (!node)
		return NULL;
	node->magic = NODE_MAGIC;
	node->graph = graph;
	*graph->last = node;
	graph->last = &node->next;
	graph->count++;
	return node;
}

CUresult graph_add(struct graph *graph, const CUgraphNode *before, size_t count,
		   const struct work *work, const CUgraphNodeParams *params,
		   struct graph_node **node)
{
	for (size_t i = 0; i < count; i++) {
		if (!before || !node_of(before[i]) || node_of(before[i])->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	}
	*node = new_node(graph);
	if (!*node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*node)->work = *work;
	(*node)->params = *params;
	for (size_t i = 0; i < count; i++) {
		if (!node_add_before(*node, node_of(before[i])))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

struct graph *graph_clone(const struct graph *graph)
{
	struct graph *clone = graph_new();

	if (clone && !user_references_copy(&clone->user_objects, graph->user_objects))
		return NULL;
	for (struct graph_node *node = graph->nodes; clone && node; node = node->next) {
		node->copy = new_node(clone);
		if (!node->copy)
			return NULL;
		node->copy->work = node->work;
		node->copy->params = node->params;
		node->copy->original = node;
		if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			graph_memory_keep(node->work.memory);
		if (node->child)
			node->copy->child = graph_clone(node->child);
	}
	for (struct graph_node *node = graph->nodes; clone && node; node = node->next) {
		for (size_t i = 0; i < node->before_count; i++)
			node_add_before(node->copy, node->before[i]->copy);
	}
	return clone;
}

CUresult cuGraphCreate(CUgraph *handle, unsigned int flags)
{
	struct graph *graph;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	graph = graph_new();
	*handle = (CUgraph)(void *)graph;
	return driver_leave(graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphDestroy(CUgraph handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct graph *graph = graph_of(handle);
	if (!graph || graph->is_child)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	graph_free(graph);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphClone(CUgraph *handle, CUgraph original)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct graph *graph = graph_of(original);
	if (!handle || !graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*handle = (CUgraph)(void *)graph_clone(graph);
	return driver_leave(*handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *handle, CUgraphNode original, CUgraph clone)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	const struct graph *graph = graph_of(clone);
	if (!handle || !graph)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (struct graph_node *node = graph->nodes; node; node = node->next) {
		if (node->original && node->original == node_of(original)) {
			*handle = (CUgraphNode)(void *)node;
			return driver_leave(CUDA_SUCCESS);
		}
	}
	return driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphDestroyNode(CUgraphNode handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_node *node = node_of(handle);
	if (!node)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	    node->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
		return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
	struct graph *graph = node->graph;
	struct graph_node **place = &graph->nodes;
	for (struct graph_node *other = graph->nodes; other; other = other->next)
		node_remove_before(other, node);
	while (*place != node)
		place = &(*place)->next;
	*place = node->next;
	if (graph->last == &node->next)
		graph->last = place;
	graph->count--;
	free_node(node);
	return driver_leave(CUDA_SUCCESS);
}
