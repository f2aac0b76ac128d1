/*
 * Calls that may put code or heaps on the card, or take them off. NVML tells how much, soon
 * afterwards; where it does not, images count by their size, and heaps and stacks as they are set.
 * Until the slice has room again the next allocation is refused.
 */
#include "books/enter.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "driver/stream.h"
#include "slice/slice.h"
#include "overhead/overhead.h"

void overhead_note_growth(bool is_large)
{
	int card;

	overhead_adopt_current();
	if (is_large)
		overhead_follow_expected();
	if (card_current(&card) != CUDA_SUCCESS || card < 0)
		return;
	if (is_large)
		overhead_stale_urgently(1u << card);
	else
		overhead_stale(card);
	overhead_refresh(card, 0);
}

void overhead_note_unload(void)
{
	overhead_follow_expected();
	for (int card = 0; card < LIMITS_CARDS; card++) {
		if (!overhead_has_context(card))
			continue;
		overhead_stale_urgently(1u << card);
		overhead_refresh(card, 0);
	}
}

/*
 * A kernel of a library has one handle and its code in every context; a
 * function's handle is of one context anyhow, so with one alone it says enough.
 */
static uint64_t name_of(const void *what, CUstream stream)
{
	uint64_t name = (uint64_t)(uintptr_t)what;

	if (name && overhead_has_several_contexts())
		name ^= (uint64_t)(uintptr_t)scope_context(stream) * 0x9E3779B97F4A7C15ull;
	return name;
}

void overhead_note_launch(const void *what, CUstream stream, CUresult result)
{
	const uint64_t name = name_of(what, stream);
	int card;

	if (launched_has(name) || result != CUDA_SUCCESS || !nvml_knows_pid() ||
	    capture_has(stream))
		return;
	const CUstreamCaptureMode mode = capture_exempt();
	const struct context_scope scope = scope_stream(stream);

	overhead_adopt_current();
	if (card_current(&card) == CUDA_SUCCESS && card >= 0)
		overhead_stale_urgently(1u << card);
	scope_end(scope);
	capture_restore(mode);
	launched_add(name);
}

static uint64_t limit_of(CUlimit limit)
{
	size_t value = 0;

	return cuda.cuCtxGetLimit && cuda.cuCtxGetLimit(&value, limit) == CUDA_SUCCESS ? value : 0;
}

/* Of the current context, where NVML does not tell. */
static uint64_t heaps_as_set(void)
{
	CUdevice device;

	if (nvml_knows_pid() || cuda.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return 0;
	return limit_of(CU_LIMIT_MALLOC_HEAP_SIZE) + limit_of(CU_LIMIT_PRINTF_FIFO_SIZE) +
	       limit_of(CU_LIMIT_STACK_SIZE) * overhead_threads(device);
}

static void note_heaps(uint64_t before)
{
	const uint64_t now = heaps_as_set();

	holdings_lock();
	struct holding *entry = holdings_at(KIND_CONTEXT, (uint64_t)(uintptr_t)context_current());

	/* What a context begins with is in its price. */
	if (entry)
		entry->other = entry->other + now > before ? entry->other + now - before : 0;
	holdings_unlock();
	overhead_note_growth(true);
}

/* Addresses leave the highest bits free. */
#define ASKED (1ull << 62)

/* Threads may share all of these. */

#define MAY_LOAD(is_large, name, parameters, arguments)                                            \
	HOOK(name, parameters, arguments, (void)0, overhead_note_growth(is_large))

#define LOADS(image_bytes, handle, home, name, parameters, arguments)                              \
	HOOK(name, parameters, arguments, (void)0,                                                 \
	     if (result == CUDA_SUCCESS && (handle)) images_loaded(*(handle), image_bytes, home);  \
	     overhead_note_growth(true))

#define UNLOADS(name, parameters, handle)                                                          \
	HOOK(name, parameters, (handle), overhead_forget_launches(),                               \
	     if (result == CUDA_SUCCESS) images_unloaded(handle);                                  \
	     overhead_note_unload())

/*
 * The first question about a function may bring its code; the first launch is
 * looked at all the same, for what else that brings.
 */
#define QUERIES_FUNCTION(function, name, parameters, arguments)                                    \
	HOOK(name, parameters, arguments, (void)0,                                                 \
	     overhead_note_launch((const void *)((uintptr_t)(function) ^ ASKED), NULL, result))

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
/* With lazy loading the code comes when a function is first asked for. */
MAY_LOAD(true, cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library))

MAY_LOAD(false, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
	 (function, module, name))
MAY_LOAD(false, cuKernelGetFunction, (CUfunction * function, CUkernel kernel), (function, kernel))
MAY_LOAD(false, cuFuncLoad, (CUfunction function), (function))

UNLOADS(cuModuleUnload, (CUmodule module), module)
UNLOADS(cuLibraryUnload, (CUlibrary library), library)
/* Stack, printf and malloc heaps. */
HOOK(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value),
     const uint64_t before = heaps_as_set(), note_heaps(before))

QUERIES_FUNCTION(function, cuFuncGetAttribute,
		 (int *value, CUfunction_attribute which, CUfunction function),
		 (value, which, function))
QUERIES_FUNCTION(function, cuFuncSetAttribute,
		 (CUfunction function, CUfunction_attribute which, int value),
		 (function, which, value))
QUERIES_FUNCTION(kernel, cuKernelGetAttribute,
		 (int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device),
		 (value, which, kernel, device))
QUERIES_FUNCTION(kernel, cuKernelSetAttribute,
		 (CUfunction_attribute which, int value, CUkernel kernel, CUdevice device),
		 (which, value, kernel, device))
QUERIES_FUNCTION(function, cuOccupancyMaxActiveBlocksPerMultiprocessor,
		 (int *blocks, CUfunction function, int block_size, size_t shared_bytes),
		 (blocks, function, block_size, shared_bytes))
QUERIES_FUNCTION(function, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
		 (int *blocks, CUfunction function, int block_size, size_t shared_bytes,
		  unsigned flags),
		 (blocks, function, block_size, shared_bytes, flags))
QUERIES_FUNCTION(function, cuOccupancyMaxPotentialBlockSize,
		 (int *grid_size, int *block_size, CUfunction function,
		  CUoccupancyB2DSize shared_of_block, size_t shared_bytes, int limit),
		 (grid_size, block_size, function, shared_of_block, shared_bytes, limit))
QUERIES_FUNCTION(function, cuOccupancyMaxPotentialBlockSizeWithFlags,
		 (int *grid_size, int *block_size, CUfunction function,
		  CUoccupancyB2DSize shared_of_block, size_t shared_bytes, int limit,
		  unsigned flags),
		 (grid_size, block_size, function, shared_of_block, shared_bytes, limit, flags))
