/* Memory of graphs: allocation nodes are charged when a graph is launched; see memory/graphs.c. */
#pragma once

#include "driver/api.h"
#include "slice/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* What a launch or upload may make the driver reserve; belongs to the calling thread. */
struct graph_growth {
	uint64_t exec;
	unsigned count; /* 0: nothing */
	struct graph_part {
		int card;
		CUdevice device;
		uint64_t reserved, before;
	} parts[LIMITS_CARDS]; /* one for each card that it draws from */
};

/* Success, or the error that the call shall return. Costs little for graphs without allocations. */
CUresult graph_begin(struct graph_growth *growth, CUgraphExec exec, CUstream stream);
void graph_end(struct graph_growth *growth, CUresult result);
/* An upload; `named` is the stream as the plain functions name it. */
CUresult graph_upload(CUgraphExec exec, CUstream stream, CUstream named,
		      __typeof__(cuGraphUpload) *real);

/* By what it is known whether a launch may bring code; see memory/graph_nodes.c. */
const void *graphs_name(CUgraphExec exec);

/* What the nodes of a graph want of each card. */
struct graph_wants {
	uint64_t exec;
	bool is_foreign; /* something of a card that is not of the slice: it will not be launched */
	CUdevice devices[LIMITS_CARDS];
	uint64_t bytes[LIMITS_CARDS]; /* each node in whole blocks; 0: nothing */
};

/* From now on that is reserved for its launches; nothing for a graph that wants nothing. */
void graphs_remember(CUgraphExec exec, const struct graph_wants *wants);
/* It is about to be destroyed: its memory stays with the device until a trim. */
void graphs_forget(CUgraphExec exec);

/* Gives back what no graph of a card uses just now. */
void graphs_refresh(int card);

void graphs_after_fork(void);
