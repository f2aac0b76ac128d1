#include "library.h"

#include <stdlib.h>
#include <string.h>

struct library {
	uint32_t magic;
	struct image *image;
	struct function *kernels;
	struct placed {
		struct context *context;
		uint64_t context_id; /* contexts' addresses come again, their numbers do not */
		struct module *module;
		struct placed *next;
	} * placed;
};

static struct library *library_of(CUlibrary handle)
{
	struct library *library = (struct library *)(void *)handle;

	return library && library->magic == LIBRARY_MAGIC ? library : NULL;
}

CUresult library_module(struct library *library, struct context *context, struct module **module)
{
	struct placed *placed;
	CUresult result;

	for (placed = library->placed; placed; placed = placed->next) {
		if (placed->context == context && placed->context_id == context->id) {
			*module = placed->module;
			return CUDA_SUCCESS;
		}
	}
	placed = calloc(1, sizeof(*placed));
	if (!placed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = module_open(context, library->image, module);
	if (result != CUDA_SUCCESS) {
		free(placed);
		return result;
	}
	*placed = (struct placed){context, context->id, *module, library->placed};
	library->placed = placed;
	return CUDA_SUCCESS;
}

CUresult function_module(const struct function *function, struct context *context,
			 struct module **module)
{
	*module = function->module;
	return function->library ? library_module(function->library, context, module)
				 : CUDA_SUCCESS;
}

static CUresult load(CUlibrary *handle, const void *code, const char *path)
{
	struct library *library;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || (!code && !path))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	library = calloc(1, sizeof(*library));
	if (!library)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	result = path ? image_open_file(path, &library->image) : image_open(code, &library->image);
	if (result != CUDA_SUCCESS) {
		free(library);
		return driver_leave(result);
	}
	library->magic = LIBRARY_MAGIC;
	*handle = (CUlibrary)(void *)library;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
			   void **jit_values, unsigned int jit_count, CUlibraryOption *options,
			   void **values, unsigned int count)
{
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	return load(library, code, NULL);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
			       void **jit_values, unsigned int jit_count, CUlibraryOption *options,
			       void **values, unsigned int count)
{
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	return load(library, NULL, path);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct library *library = library_of(handle);
	if (!library)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	while (library->placed) {
		struct placed *placed = library->placed;

		library->placed = placed->next;
		if (placed->context->is_alive && placed->context->id == placed->context_id)
			module_close(placed->module);
		free(placed);
	}
	while (library->kernels) {
		struct function *kernel = library->kernels;

		library->kernels = kernel->next;
		function_free(kernel);
	}
	image_drop(library->image);
	library->magic = 0;
	free(library);
	return driver_leave(CUDA_SUCCESS);
}

/* The kernel's one handle, made when it is first asked for. */
static CUresult kernel_of(struct library *library, const struct image_kernel *kernel,
			  struct function **function)
{
	if (!kernel)
		return CUDA_ERROR_NOT_FOUND;
	for (*function = library->kernels; *function; *function = (*function)->next) {
		if ((*function)->kernel == kernel)
			return CUDA_SUCCESS;
	}
	*function = function_new(kernel);
	if (!*function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*function)->library = library;
	(*function)->next = library->kernels;
	library->kernels = *function;
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *handle, CUlibrary library_handle, const char *name)
{
	struct function *function;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct library *library = library_of(library_handle);
	if (!handle || !library || !name || !*name)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = kernel_of(library, image_find(library->image, name), &function);
	if (result == CUDA_SUCCESS)
		*handle = (CUkernel)(void *)function;
	return driver_leave(result);
}

CUresult cuLibraryEnumerateKernels(CUkernel *handles, unsigned int count, CUlibrary library_handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct library *library = library_of(library_handle);
	if (!library || (!handles && count))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count && i < library->image->count && result == CUDA_SUCCESS; i++) {
		struct function *function;

		result = kernel_of(library, &library->image->kernels[i], &function);
		if (result == CUDA_SUCCESS)
			handles[i] = (CUkernel)(void *)function;
	}
	return driver_leave(result);
}

CUresult cuLibraryGetModule(CUmodule *handle, CUlibrary library)
{
	struct context *context;
	struct module *module;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !library_of(library))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = library_module(library_of(library), context, &module);
	if (result == CUDA_SUCCESS)
		result = module_make_resident(module);
	if (result == CUDA_SUCCESS)
		*handle = (CUmodule)(void *)module;
	return driver_leave(result);
}

/* The function of a kernel in the current context. */
CUresult cuKernelGetFunction(CUfunction *handle, CUkernel kernel_handle)
{
	struct context *context;
	struct module *module;
	struct function *function;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	const struct function *kernel = function_of(kernel_handle);
	if (!handle || !kernel || !kernel->library)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = library_module(kernel->library, context, &module);
	if (result == CUDA_SUCCESS)
		result = module_function(module, kernel->kernel->name, &function);
	if (result == CUDA_SUCCESS)
		*handle = (CUfunction)(void *)function;
	return driver_leave(result);
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel handle)
{
	const struct function *kernel = function_of(handle);

	if (!library || !kernel || !kernel->library)
		return CUDA_ERROR_INVALID_VALUE;
	*library = (CUlibrary)(void *)kernel->library;
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle)
{
	const struct library *library = library_of(handle);

	if (!count || !library)
		return CUDA_ERROR_INVALID_VALUE;
	*count = (unsigned)library->image->count;
	return CUDA_SUCCESS;
}
