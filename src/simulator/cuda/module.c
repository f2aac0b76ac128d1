#include "module.h"

#include "ledger.h"
#include "memory.h"
#include "settings.h"
#include "stream.h"

#include "../costs.h"

#include <stdlib.h>
#include <string.h>

struct variable {
	const struct image_variable *image;
	struct memory *memory;
	struct variable *next;
};

static struct module *modules;

static uint64_t module_cost_bytes(void)
{
	return setting_number("GPU_SIMULATOR_MODULE_MIB", 0) << 20;
}

static bool is_lazy(void)
{
	const char *loading = setting("CUDA_MODULE_LOADING");

	return loading ? strcmp(loading, "LAZY") == 0 : driver.cuda_version >= 12020;
}

/* Code is put where the card cannot be reading it. What waits for the program is not waited for. */
static void let_work_end(struct context *context)
{
	uint64_t left_ns, end_ns;

	if (context_is_idle(context, &left_ns))
		return;
	end_ns = driver_now_ns() + 2 * left_ns;
	while (!context_is_idle(context, &left_ns) && driver_now_ns() < end_ns)
		driver_doze(left_ns);
}

CUresult module_make_resident(struct module *module)
{
	if (module->is_resident)
		return CUDA_SUCCESS;
	if (gpusim_cost(COST_LOADING_WAITS, NULL))
		let_work_end(module->context);
	if (!ledger_take(module->context->device, module->cost_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->is_resident = true;
	return CUDA_SUCCESS;
}

CUresult module_open(struct context *context, struct image *image, struct module **module)
{
	struct module *made = calloc(1, sizeof(*made));
	CUresult result;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->magic = MODULE_MAGIC;
	made->context = context;
	made->cost_bytes = module_cost_bytes();
	result = is_lazy() && made->cost_bytes ? CUDA_SUCCESS : module_make_resident(made);
	if (result != CUDA_SUCCESS) {
		free(made);
		return result;
	}
	made->image = image_keep(image);
	made->next = modules;
	modules = made;
	*module = made;
	return CUDA_SUCCESS;
}

void module_close(struct module *module)
{
	struct module **place = &modules;

	while (*place && *place != module)
		place = &(*place)->next;
	if (*place)
		*place = module->next;
	if (module->is_resident)
		ledger_give(module->context->device, module->cost_bytes);
	while (module->functions) {
		struct function *function = module->functions;

		module->functions = function->next;
		function_free(function);
	}
	while (module->variables) {
		struct variable *variable = module->variables;

		module->variables = variable->next;
		memory_release(variable->memory);
		free(variable);
	}
	image_drop(module->image);
	module->magic = 0;
	free(module);
}

void modules_close_all(struct context *context)
{
	struct module *module = modules;

	while (module) {
		struct module *next = module->next;

		if (module->context == context)
			module_close(module);
		module = next;
	}
}

CUresult module_function(struct module *module, const char *name, struct function **function)
{
	const struct image_kernel *kernel = image_find(module->image, name);

	if (!kernel)
		return CUDA_ERROR_NOT_FOUND;
	for (*function = module->functions; *function; *function = (*function)->next) {
		if ((*function)->kernel == kernel)
			return CUDA_SUCCESS;
	}
	*function = function_new(kernel);
	if (!*function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*function)->module = module;
	(*function)->next = module->functions;
	module->functions = *function;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *handle, const void *bytes, const char *path)
{
	struct context *context;
	struct module *module;
	struct image *image;
	CUresult result = driver_enter(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || (!bytes && !path))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = path ? image_open_file(path, &image) : image_open(bytes, &image);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	result = module_open(context, image, &module);
	image_drop(image);
	if (result == CUDA_SUCCESS)
		*handle = (CUmodule)(void *)module;
	return driver_leave(result);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	return load(module, NULL, path);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return load(module, image, NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
			    CUjit_option *options, void **values)
{
	(void)options;
	(void)values;
	(void)count;
	return load(module, image, NULL);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return load(module, image, NULL);
}

struct module *module_of(CUmodule handle)
{
	struct module *module = (struct module *)(void *)handle;

	return module && module->magic == MODULE_MAGIC ? module : NULL;
}

CUresult cuModuleUnload(CUmodule handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!module_of(handle))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	module_close(module_of(handle));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *handle, CUmodule module, const char *name)
{
	struct function *function;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !name || !*name)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!module_of(module))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	result = module_function(module_of(module), name, &function);
	if (result == CUDA_SUCCESS)
		*handle = (CUfunction)(void *)function;
	return driver_leave(result);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !module_of(handle))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*count = (unsigned)module_of(handle)->image->count;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleEnumerateFunctions(CUfunction *handles, unsigned int count, CUmodule handle)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	struct module *module = module_of(handle);
	if (!module || (!handles && count))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count && i < module->image->count && result == CUDA_SUCCESS; i++) {
		struct function *function;

		result = module_function(module, module->image->kernels[i].name, &function);
		if (result == CUDA_SUCCESS)
			handles[i] = (CUfunction)(void *)function;
	}
	return driver_leave(result);
}

/* On the card from when it is first asked for; its memory ends with the module. */
static CUresult place_variable(struct module *module, const char *name, struct variable **variable)
{
	const struct image_variable *wanted = image_variable(module->image, name);
	CUresult result;

	if (!wanted || !wanted->bytes)
		return CUDA_ERROR_NOT_FOUND;
	for (*variable = module->variables; *variable; *variable = (*variable)->next) {
		if ((*variable)->image == wanted)
			return CUDA_SUCCESS;
	}
	*variable = calloc(1, sizeof(**variable));
	if (!*variable)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = memory_allocate(module->context, wanted->bytes, MEMORY_DEVICE,
				 &(*variable)->memory);
	if (result != CUDA_SUCCESS) {
		free(*variable);
		return result;
	}
	(*variable)->image = wanted;
	(*variable)->next = module->variables;
	module->variables = *variable;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
			      const char *name)
{
	CUresult result = driver_enter_bare();
	struct variable *variable;

	if (result != CUDA_SUCCESS)
		return result;
	if (!name)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!module_of(handle))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	result = place_variable(module_of(handle), name, &variable);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	if (address)
		*address = variable->memory->address;
	if (bytes)
		*bytes = variable->image->bytes;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
	const struct function *function = function_of(handle);

	if (!module || !function || !function->module)
		return CUDA_ERROR_INVALID_VALUE;
	*module = (CUmodule)(void *)function->module;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = is_lazy() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
	return CUDA_SUCCESS;
}
