/* Memory of graphs: allocation nodes are charged when a graph is launched; see graphs.c. */
#ifndef GPUSLICE_GRAPHS_H
#define GPUSLICE_GRAPHS_H

#include "api.h"

#include <stdbool.h>
#include <stdint.h>

/* What a launch or upload may make the driver reserve; belongs to the calling thread. */
struct graph_growth {
	int card;
	CUdevice device;
	uint64_t reserved;
	uint64_t before;
	bool is_open;
	uint64_t exec;
};

/* Success, or the error that the call shall return. Costs little for graphs without allocations. */
CUresult graph_begin(struct graph_growth *growth, CUgraphExec exec, CUstream stream);
void graph_end(struct graph_growth *growth, CUresult result);

void graphs_after_fork(void);

#endif
