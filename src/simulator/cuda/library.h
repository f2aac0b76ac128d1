/* Libraries: code that belongs to no context; each context brings it to its card when it is used.
 */
#ifndef GPUSIM_LIBRARY_H
#define GPUSIM_LIBRARY_H

#include "module.h"

/* Both under the process's lock. */

/* The library's module in a context, made at the first use there. */
CUresult library_module(struct library *library, struct context *context, struct module **module);
/* The module that a function's code is in, in that context. */
CUresult function_module(const struct function *function, struct context *context,
			 struct module **module);

#endif
