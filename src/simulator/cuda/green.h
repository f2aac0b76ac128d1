/* Green contexts: handles by which a part of the card is used through its primary context. */
#ifndef GPUSIM_GREEN_H
#define GPUSIM_GREEN_H

#include "context.h"

/* Under the process's lock: those of this primary context end with it. */
void green_end_all(const struct context *primary);

#endif
