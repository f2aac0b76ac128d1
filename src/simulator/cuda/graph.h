/* Graphs: nodes and who comes before whom; and what is made of them to be launched. */
#ifndef GPUSIM_GRAPH_H
#define GPUSIM_GRAPH_H

#include "graph_memory.h"
#include "user_object.h"
#include "work.h"

enum { GRAPH_MAGIC = 0x47524630, NODE_MAGIC = 0x4e4f4430, EXEC_MAGIC = 0x45584530 };

struct graph_node {
	uint32_t magic;
	struct graph *graph;
	struct graph *child; /* of a child graph node, which owns it */
	struct work work;
	CUgraphNodeParams params;
	struct graph_node **before; /* what it waits for */
	size_t before_count;
	struct graph_node *original; /* in the graph this one was cloned from */
	struct graph_node *next;
	struct graph_node *copy; /* while it is being cloned */
	unsigned rank;           /* while an order is being found */
};

struct graph {
	uint32_t magic;
	bool is_child;
	size_t count;
	struct graph_node *nodes; /* in the order of their making */
	struct graph_node **last;
	struct user_references *user_objects;
};

struct graph_step {
	struct work work;
	const struct graph_node *node;
	bool is_enabled;
};

struct graph_exec {
	uint32_t magic;
	unsigned long long flags;
	size_t count;
	struct graph_step *steps; /* in an order that keeps the dependencies */
	struct graph_claims claims;
	struct device *device; /* whose memory it takes by itself */
	uint64_t own_bytes;
	bool is_ready; /* was launched or uploaded */
	struct user_references *user_objects;
};

/* All under the process's lock. */
struct graph *graph_of(CUgraph handle);
struct graph_node *node_of(CUgraphNode handle);
struct graph_exec *exec_of(CUgraphExec handle);

struct graph *graph_new(void);
void graph_free(struct graph *graph);
struct graph *graph_clone(const struct graph *graph);

/* NULL handles in `before` are an error. The node is the graph's. */
CUresult graph_add(struct graph *graph, const CUgraphNode *before, size_t count,
		   const struct work *work, const CUgraphNodeParams *params,
		   struct graph_node **node);
/* To an array on the heap, unless it stands there; false where memory is short. */
bool nodes_add(struct graph_node ***nodes, size_t *count, struct graph_node *node);
bool node_add_before(struct graph_node *node, struct graph_node *before);
bool node_remove_before(struct graph_node *node, const struct graph_node *before);

/* graph_params.c: what a node's parameters mean. */
CUresult graph_work_of(struct context *context, CUgraphNodeParams *params, struct work *work);

/* graph_exec.c */
CUresult exec_new(const struct graph *graph, unsigned long long flags, struct graph_exec **exec);
void exec_free(struct graph_exec *exec);
/* What the steps do is exchanged; the nodes they are known by stay. As many steps in both. */
void exec_swap(struct graph_exec *exec, struct graph_exec *other);
struct graph_step *exec_step(struct graph_exec *exec, const struct graph_node *node);
/* Appends the steps of a graph; false when its dependencies are a circle. */
bool graph_order(const struct graph *graph, struct graph_exec *exec);

#endif
