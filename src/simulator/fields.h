/* Fields by name: one line "name=value" read into, or written from, a node. */
#ifndef GPU_SIMULATOR_FIELDS_H
#define GPU_SIMULATOR_FIELDS_H

#include "state.h"

/* Assign one line. Returns NULL, or what is wrong with it. */
const char *gpusim_assign(struct gpusim_node *node, const char *line, size_t length);

/* Write all lines; returns false when they do not fit. */
bool gpusim_write_lines(struct gpusim_node *node, char *lines, size_t bytes);

#endif
