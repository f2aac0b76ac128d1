/* What the parts of the state library tell each other; not for the drivers. */
#ifndef GPU_SIMULATOR_STATE_INTERNAL_H
#define GPU_SIMULATOR_STATE_INTERNAL_H

#include "state.h"

/* The descriptor behind the attached node, for liveness locks; -1 for another node. */
int gpusim_descriptor(const struct gpusim_node *node);

#endif
