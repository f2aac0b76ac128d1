/*
 * Calls that may put code or heaps on the card, or take them off. NVML tells how much, soon
 * afterwards; where it does not, images count by their size, and heaps and stacks as they are set.
 * Until the slice has room again the next allocation is refused.
 */
#include "books/account.h"
#include "books/entry.h"
#include "books/holdings.h"
#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "slice/slice.h"
#include "unasked/images.h"
#include "unasked/overhead.h"

#include <pthread.h>

/* What is in the books for code and heaps. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static uint64_t counted[LIMITS_CARDS];

void overhead_code_after_fork(void)
{
	counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		counted[i] = 0;
	images_after_fork();
}

/* Of code and heaps; `contexts`: bytes of the contexts themselves. */
static uint64_t code_on(int card, uint64_t *contexts)
{
	const struct holding *entry;
	uint64_t heaps = 0;
	uint32_t place = 0;
	unsigned homes = 0;

	*contexts = 0;
	holdings_lock();
	while ((entry = holdings_next(KIND_CONTEXT, &place))) {
		if (entry->card != card)
			continue;
		*contexts += entry->bytes;
		heaps += entry->other;
		/* Code is a green one's home's. */
		homes += !entry->context;
	}
	holdings_unlock();
	return heaps + images_code(card, homes);
}

uint64_t overhead_expected(int card)
{
	uint64_t contexts;
	const uint64_t code = code_on(card, &contexts);

	return contexts + code;
}

void overhead_follow_expected(void)
{
	uint64_t ignored;

	if (nvml_knows_pid())
		return;
	pthread_mutex_lock(&counting);
	for (int card = 0; card < (int)slice_limits()->card_count; card++) {
		const uint64_t due = code_on(card, &ignored);

		if (due != counted[card])
			account_adjust(card, ACCOUNT_OVERHEAD, counted[card], due);
		counted[card] = due;
	}
	pthread_mutex_unlock(&counting);
}

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
#define ASKS(function, name, parameters, arguments)                                                \
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
