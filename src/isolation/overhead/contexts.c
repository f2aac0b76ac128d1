/* Contexts, made and ended: a program's own, the primary one of a card, green ones. */
#include "books/enter.h"
#include "books/holdings.h"
#include "books/memory_limit.h"
#include "compute/meter.h"
#include "driver/cards.h"
#include "driver/context_scope.h"
#include "overhead/overhead.h"

#include <pthread.h>
#include <stdatomic.h>

/* Threads may share all of these. First a program's own. */

#define MAKES(device, name, parameters, arguments)                                                 \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct overhead_context making;                                                    \
                                                                                                   \
		ENTER_WITH(name, arguments);                                                       \
		CUresult result = overhead_begin_context(&making, device, NULL);                   \
                                                                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		result = cuda.name arguments;                                                      \
		overhead_end_context(&making, result, result == CUDA_SUCCESS ? *context : NULL);   \
		return result;                                                                     \
	}

MAKES(device, cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device),
      (context, flags, device))
MAKES(device, cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device),
      (context, flags, device))
MAKES(device, cuCtxCreate_v3,
      (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned flags,
       CUdevice device),
      (context, affinity, count, flags, device))
MAKES(device, cuCtxCreate_v4,
      (CUcontext * context, CUctxCreateParams *parameters, unsigned flags, CUdevice device),
      (context, parameters, flags, device))

#define ENDS(has_ended, name)                                                                      \
	HOOK(name, (CUcontext context), (context), meter_forget_context(context);                  \
	     calls_begin(),                                                                        \
	     overhead_end_forget(result == CUDA_SUCCESS && (has_ended) ? context : NULL))

ENDS(true, cuCtxDestroy)
ENDS(true, cuCtxDestroy_v2)
/* One of its users less: the last one's call ends it, and then it is no longer current here. */
ENDS(context_current() != context, cuCtxDetach)

/*
 * A card's primary context is there from its first user to the last. Users are
 * counted, so that work is not forgotten where one goes and others
 * stay: our events must be gone before the context, and whether a call will end
 * it the driver does not say.
 */
enum { DEVICES = 64 };

/* One user comes or goes at a time: the first makes the context, the last ends it. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

static atomic_int users[DEVICES]; /* whose calls were seen */

void contexts_after_fork(void)
{
	changing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	for (unsigned i = 0; i < DEVICES; i++)
		atomic_store(&users[i], 0);
}

static bool is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;

	return cuda.cuDevicePrimaryCtxGetState &&
	       cuda.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

static void count_user(CUdevice device, int more)
{
	if (device >= 0 && device < DEVICES)
		atomic_fetch_add(&users[device], more);
}

static CUresult make_primary(CUcontext *context, CUdevice device)
{
	struct overhead_context making;
	CUresult result = overhead_begin_context(&making, device, NULL);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuDevicePrimaryCtxRetain(context, device);
	overhead_end_context(&making, result, result == CUDA_SUCCESS ? *context : NULL);
	return result;
}

/* One user more. Where that makes it, its cost is held against the slice. */
static CUresult primary_retain(CUcontext *context, CUdevice device)
{
	pthread_mutex_lock(&changing);
	const CUresult result = is_active(device) ? cuda.cuDevicePrimaryCtxRetain(context, device)
						  : make_primary(context, device);

	if (result == CUDA_SUCCESS)
		count_user(device, 1);
	pthread_mutex_unlock(&changing);
	return result;
}

/* The handle; NULL when it is not active. Retaining does not make another. */
static CUcontext context_of(CUdevice device)
{
	CUcontext context = NULL;

	if (!is_active(device) || !cuda.cuDevicePrimaryCtxRetain ||
	    cuda.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return NULL;
	if (cuda.cuDevicePrimaryCtxRelease_v2)
		cuda.cuDevicePrimaryCtxRelease_v2(device);
	else if (cuda.cuDevicePrimaryCtxRelease)
		cuda.cuDevicePrimaryCtxRelease(device);
	return context;
}

/*
 * Around a call of the driver's that takes a user away, or with `is_reset` all of them.
 * Between the two no other user comes or goes.
 */
struct primary_end {
	CUdevice device;
	CUcontext context; /* NULL: it is not active */
};

static void primary_begin_end(struct primary_end *end, CUdevice device, bool is_reset)
{
	pthread_mutex_lock(&changing);
	const bool is_shared = device >= 0 && device < DEVICES && atomic_load(&users[device]) > 1;

	*end = (struct primary_end){.device = device, .context = context_of(device)};
	if (is_reset || !is_shared)
		meter_forget_context(end->context);
	calls_begin();
}

/* The context, if that was its last. */
static CUcontext forget_user(const struct primary_end *end)
{
	if (is_active(end->device)) {
		count_user(end->device, -1);
		return NULL;
	}
	if (end->device >= 0 && end->device < DEVICES)
		atomic_store(&users[end->device], 0);
	return end->context;
}

static void primary_end(const struct primary_end *end, CUresult result)
{
	overhead_end_forget(result == CUDA_SUCCESS ? forget_user(end) : NULL);
	pthread_mutex_unlock(&changing);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRetain, pctx, dev);
	return primary_retain(pctx, dev);
}

#define ENDS_PRIMARY(is_reset, name)                                                               \
	HOOK(name, (CUdevice device), (device), struct primary_end end;                            \
	     primary_begin_end(&end, device, is_reset), primary_end(&end, result))

ENDS_PRIMARY(false, cuDevicePrimaryCtxRelease)
ENDS_PRIMARY(false, cuDevicePrimaryCtxRelease_v2)
ENDS_PRIMARY(true, cuDevicePrimaryCtxReset)
ENDS_PRIMARY(true, cuDevicePrimaryCtxReset_v2)

/* Green contexts: each is a user of its card's primary context, and may cost something itself. */
static CUresult make_green(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device,
			   unsigned flags, CUcontext primary)
{
	/* Whatever is current, the card that is measured is this one. */
	CUcontext there = cuda.cuCtxPushCurrent_v2(primary) == CUDA_SUCCESS ? primary : NULL;
	struct overhead_context making;
	CUresult result = overhead_begin_context(&making, device, primary);

	if (result == CUDA_SUCCESS) {
		result = cuda.cuGreenCtxCreate(green, desc, device, flags);
		overhead_end_context(&making, result,
				     result == CUDA_SUCCESS ? (CUcontext)(void *)*green : NULL);
	}
	if (there)
		cuda.cuCtxPopCurrent_v2(&there);
	return result;
}

/*
 * As a process's first call this makes the primary context: then that one is
 * made first, for its known price or measured. The green one is its user, and
 * we are no longer when it is there.
 */
CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
			  unsigned int flags)
{
	struct primary_end end;
	CUcontext primary;

	ENTER(cuGreenCtxCreate, phCtx, desc, dev, flags);
	if (!cuda.cuDevicePrimaryCtxRetain || !cuda.cuDevicePrimaryCtxRelease_v2 ||
	    !cuda.cuCtxPushCurrent_v2 || !cuda.cuCtxPopCurrent_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = primary_retain(&primary, dev);

	if (result != CUDA_SUCCESS)
		return result;
	atomic_store(&green_was_made, true);
	result = make_green(phCtx, desc, dev, flags, primary);
	/* What this context had is the green one's now, unless there is none. */
	if (result == CUDA_SUCCESS) {
		cuda.cuDevicePrimaryCtxRelease_v2(dev);
		return result;
	}
	primary_begin_end(&end, dev, false);
	primary_end(&end, cuda.cuDevicePrimaryCtxRelease_v2(dev));
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct primary_end end;
	struct holding entry;
	CUdevice device = -1;

	ENTER(cuGreenCtxDestroy, hCtx);
	if (holdings_get(KIND_CONTEXT, (uint64_t)(uintptr_t)hCtx, &entry))
		device = (CUdevice)entry.tag;
	primary_begin_end(&end, device, false);
	calls_begin();
	const CUresult result = cuda.cuGreenCtxDestroy(hCtx);

	overhead_end_forget(result == CUDA_SUCCESS ? (CUcontext)(void *)hCtx : NULL);
	primary_end(&end, result);
	return result;
}
