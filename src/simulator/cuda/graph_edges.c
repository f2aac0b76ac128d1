/* Who comes before whom: told and changed. Edge data is accepted and not kept: all edges are plain.
 */
#include "graph.h"

#include <string.h>

/* A list the program asks for twice: first how long it is, then what is in it. */
struct listing {
	CUgraphNode *at;
	CUgraphNode *to; /* the other end, for edges */
	CUgraphEdgeData *edges;
	size_t room;
	size_t count;
};

static void put(struct listing *listing, const struct graph_node *node, const struct graph_node *to)
{
	size_t place = listing->count++;

	if (place >= listing->room)
		return;
	if (listing->at)
		listing->at[place] = (CUgraphNode)(uintptr_t)node;
	if (listing->to)
		listing->to[place] = (CUgraphNode)(uintptr_t)to;
	if (listing->edges)
		memset(&listing->edges[place], 0, sizeof(*listing->edges));
}

typedef void list_function(struct listing *listing, const void *subject);

static CUresult list(struct listing listing, size_t *count, const void *subject,
		     list_function *function)
{
	size_t room;

	if (!count || !subject)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	room = listing.at ? *count : 0;
	listing.room = room;
	function(&listing, subject);
	for (size_t i = listing.count; listing.at && i < room; i++)
		listing.at[i] = NULL;
	if (!listing.at || listing.count < room)
		*count = listing.count;
	return driver_leave(CUDA_SUCCESS);
}

static void all_nodes(struct listing *listing, const void *subject)
{
	for (const struct graph_node *node = ((const struct graph *)subject)->nodes; node;
	     node = node->next)
		put(listing, node, NULL);
}

static void root_nodes(struct listing *listing, const void *subject)
{
	for (const struct graph_node *node = ((const struct graph *)subject)->nodes; node;
	     node = node->next) {
		if (node->before_count == 0)
			put(listing, node, NULL);
	}
}

static void all_edges(struct listing *listing, const void *subject)
{
	for (const struct graph_node *node = ((const struct graph *)subject)->nodes; node;
	     node = node->next) {
		for (size_t i = 0; i < node->before_count; i++)
			put(listing, node->before[i], node);
	}
}

static void nodes_before(struct listing *listing, const void *subject)
{
	const struct graph_node *node = subject;

	for (size_t i = 0; i < node->before_count; i++)
		put(listing, node->before[i], NULL);
}

static void nodes_after(struct listing *listing, const void *subject)
{
	const struct graph_node *node = subject;

	for (const struct graph_node *other = node->graph->nodes; other; other = other->next) {
		for (size_t i = 0; i < other->before_count; i++) {
			if (other->before[i] == node)
				put(listing, other, NULL);
		}
	}
}

#define LIST(subject, function, ...)                                                               \
	CUresult result = driver_enter_bare();                                                     \
                                                                                                   \
	if (result != CUDA_SUCCESS)                                                                \
		return result;                                                                     \
	return list((struct listing){__VA_ARGS__}, count, subject, function)

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	LIST(graph_of(graph), all_nodes, .at = nodes);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	LIST(graph_of(graph), root_nodes, .at = nodes);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	LIST(graph_of(graph), all_edges, .at = from, .to = to);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
			    CUgraphEdgeData *edges, size_t *count)
{
	LIST(graph_of(graph), all_edges, .at = from, .to = to, .edges = edges);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	LIST(node_of(node), nodes_before, .at = nodes);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
				       size_t *count)
{
	LIST(node_of(node), nodes_before, .at = nodes, .edges = edges);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	LIST(node_of(node), nodes_after, .at = nodes);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes,
					 CUgraphEdgeData *edges, size_t *count)
{
	LIST(node_of(node), nodes_after, .at = nodes, .edges = edges);
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!node_of(handle) || !type)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*type = node_of(handle)->work.type;
	return driver_leave(CUDA_SUCCESS);
}

static CUresult change(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count,
		       bool is_addition)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!graph_of(graph) || (count && (!from || !to)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		struct graph_node *node = node_of(to[i]);
		struct graph_node *before = node_of(from[i]);

		if (!node || !before || node == before ||
		    !(is_addition ? node_add_before(node, before)
				  : node_remove_before(node, before)))
			result = CUDA_ERROR_INVALID_VALUE;
	}
	return driver_leave(result);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				size_t count)
{
	return change(graph, from, to, count, true);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   const CUgraphEdgeData *edges, size_t count)
{
	(void)edges;
	return change(graph, from, to, count, true);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				   size_t count)
{
	return change(graph, from, to, count, false);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				      const CUgraphEdgeData *edges, size_t count)
{
	(void)edges;
	return change(graph, from, to, count, false);
}
