/*
 * Modules and kernels. No code is run: a kernel is a duration. Its name, which
 * has to be in the image (image.h), says how long it takes on an idle card:
 *
 *   spin          as long as its first parameter says, a uint64_t in ns
 *   spin_250      250 microseconds
 *   anything else 10 microseconds, or GPU_SIMULATOR_KERNEL_NS
 *
 * GPU_SIMULATOR_MODULE_MIB is what a module takes on the card (0). With
 * CUDA_MODULE_LOADING=LAZY, the default from CUDA 12.2, it takes it at the
 * first launch of a kernel of the module, otherwise when it is loaded.
 */
#ifndef GPUSIM_MODULE_H
#define GPUSIM_MODULE_H

#include "context.h"
#include "image.h"

enum { MODULE_MAGIC = 0x4d4f4430, FUNCTION_MAGIC = 0x46554e30, LIBRARY_MAGIC = 0x4c494230 };

struct module {
	uint32_t magic;
	bool is_resident; /* its code is on the card */
	uint64_t cost_bytes;
	struct context *context;
	struct image *image;
	struct function *functions;
	struct variable *variables; /* that were asked for */
	struct module *next;
};

struct function {
	uint32_t magic;
	bool takes_duration; /* from its first parameter */
	uint64_t duration_ns;
	struct module *module; /* NULL for a kernel of a library */
	struct library *library;
	struct function *next;
	const struct image_kernel *kernel; /* in the image of its module or library */
	int attributes[CU_FUNC_ATTRIBUTE_MAX];
	struct old_launch *old; /* what the calls of CUDA 3 set, or NULL: launch_old.c */
};

/* All under the process's lock. */
CUresult module_open(struct context *context, struct image *image, struct module **module);
struct module *module_of(CUmodule handle);
CUresult module_function(struct module *module, const char *name, struct function **function);
/* Brings the code to the card, if it is not there. */
CUresult module_make_resident(struct module *module);
void module_close(struct module *module);
void modules_close_all(struct context *context);

/* A CUfunction, or a CUkernel in the current context; NULL when it is none. */
struct function *function_of(const void *handle);
/* function_api.c: brings its code to the card of the current context, as lazy loading does when it
 * is asked about.
 */
CUresult function_load(const void *handle);
uint64_t function_duration_ns(const struct function *function, void **parameters, void **extra);
struct function *function_new(const struct image_kernel *kernel);
void function_free(struct function *function);

#endif
