/* What a card and its driver cost beside the work itself: costs.def lists it. */
#ifndef GPU_SIMULATOR_COSTS_H
#define GPU_SIMULATOR_COSTS_H

#include <stdbool.h>
#include <stdint.h>

enum gpusim_cost {
#define COST(name, variable, card) name,
#include "costs.def"
#undef COST
	COSTS
};

/* As the environment says; `is_said`, if not NULL, tells whether it says anything. Any thread. */
uint64_t gpusim_cost(enum gpusim_cost cost, bool *is_said);
/*
 * Of a call that is slow at times: each one as the environment says, else each eighth; `calls`
 * counts those so far.
 */
uint64_t gpusim_cost_at_times(enum gpusim_cost cost, uint64_t calls);

#endif
