/*
 * Calls that may put code or heaps on the card. Nobody knows before how much,
 * so it is measured after, and until the slice has room again for the next
 * allocation that is refused.
 */
#include "books/entry.h"
#include "driver/cards.h"
#include "unasked/images.h"
#include "unasked/overhead.h"

/* Addresses leave the highest bits free. */
#define ASKED (1ull << 62)

/* Threads may share all of these. */

#define MAY_CHANGE(is_large, name, parameters, arguments)                                          \
	HOOK(name, parameters, arguments, struct overhead_change change;                           \
	     overhead_begin_change(&change, is_large), overhead_end_change(&change))

#define LOADS(image_bytes, handle, home, name, parameters, arguments)                              \
	HOOK(name, parameters, arguments, struct overhead_change change;                           \
	     overhead_begin_change(&change, true),                                                 \
	     if (result == CUDA_SUCCESS && (handle)) images_loaded(*(handle), image_bytes, home);  \
	     overhead_end_change(&change))
/* With lazy loading the code comes when a function is first asked for. */
#define MAY_LOAD(name, parameters, arguments) MAY_CHANGE(false, name, parameters, arguments)

#define UNLOADS(name, parameters, handle)                                                          \
	HOOK(name, parameters, (handle), overhead_forget_launches();                               \
	     struct overhead_unload unload;                                                        \
	     overhead_begin_unload(&unload), if (result == CUDA_SUCCESS) images_unloaded(handle);  \
	     overhead_end_unload(&unload))

/*
 * The first question about a function may bring its code; the first launch is
 * looked at all the same, for what else that brings.
 */
#define ASKS(function, name, parameters, arguments)                                                \
	HOOK(name, parameters, arguments,                                                          \
	     const void *asked = (const void *)((uintptr_t)(function) ^ ASKED);                    \
	     struct overhead_launch first; overhead_begin_launch(&first, asked, NULL),             \
					   overhead_end_launch(&first, asked, NULL, result, 0))

LOADS(image_file_bytes(fname), module, context_current(), cuModuleLoad,
      (CUmodule * module, const char *fname), (module, fname))
LOADS(image_bytes(image), module, context_current(), cuModuleLoadData,
      (CUmodule * module, const void *image), (module, image))
LOADS(image_bytes(image), module, context_current(), cuModuleLoadDataEx,
      (CUmodule * module, const void *image, unsigned count, CUjit_option *options, void **values),
      (module, image, count, options, values))
LOADS(image_bytes(image), module, context_current(), cuModuleLoadFatBinary,
      (CUmodule * module, const void *image), (module, image))
LOADS(image_bytes(code), library, NULL, cuLibraryLoadData,
      (CUlibrary * library, const void *code, CUjit_option *options, void **values, unsigned count,
       CUlibraryOption *library_options, void **library_values, unsigned library_count),
      (library, code, options, values, count, library_options, library_values, library_count))
LOADS(image_file_bytes(fname), library, NULL, cuLibraryLoadFromFile,
      (CUlibrary * library, const char *fname, CUjit_option *options, void **values, unsigned count,
       CUlibraryOption *library_options, void **library_values, unsigned library_count),
      (library, fname, options, values, count, library_options, library_values, library_count))
MAY_CHANGE(true, cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library))

MAY_LOAD(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
	 (function, module, name))
MAY_LOAD(cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel))
MAY_LOAD(cuFuncLoad, (CUfunction function), (function))

UNLOADS(cuModuleUnload, (CUmodule module), module)
UNLOADS(cuLibraryUnload, (CUlibrary library), library)
/* Stack, printf and malloc heaps. */
HOOK(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value), struct overhead_unload unload;
     overhead_begin_unload(&unload), overhead_end_unload(&unload))

ASKS(function, cuFuncGetAttribute, (int *value, CUfunction_attribute which, CUfunction function),
     (value, which, function))
ASKS(function, cuFuncSetAttribute, (CUfunction function, CUfunction_attribute which, int value),
     (function, which, value))
ASKS(kernel, cuKernelGetAttribute,
     (int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device),
     (value, which, kernel, device))
ASKS(kernel, cuKernelSetAttribute,
     (CUfunction_attribute which, int value, CUkernel kernel, CUdevice device),
     (which, value, kernel, device))
ASKS(function, cuOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *blocks, CUfunction function, int block_size, size_t shared_bytes),
     (blocks, function, block_size, shared_bytes))
ASKS(function, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *blocks, CUfunction function, int block_size, size_t shared_bytes, unsigned flags),
     (blocks, function, block_size, shared_bytes, flags))
ASKS(function, cuOccupancyMaxPotentialBlockSize,
     (int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_of_block,
      size_t shared_bytes, int limit),
     (grid_size, block_size, function, shared_of_block, shared_bytes, limit))
ASKS(function, cuOccupancyMaxPotentialBlockSizeWithFlags,
     (int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_of_block,
      size_t shared_bytes, int limit, unsigned flags),
     (grid_size, block_size, function, shared_of_block, shared_bytes, limit, flags))
