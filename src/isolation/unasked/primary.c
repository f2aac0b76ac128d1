/*
 * Users are counted, so that work is not forgotten where one goes and others
 * stay: our events must be gone before the context, and whether a call will end
 * it the driver does not say.
 */
#include "unasked/primary.h"

#include "books/entry.h"
#include "compute/meter.h"
#include "unasked/overhead.h"

#include <pthread.h>
#include <stdatomic.h>

enum { DEVICES = 64 };

/* One user comes or goes at a time: whether he is the first or the last decides what is counted. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

static atomic_int users[DEVICES]; /* that we know of */

void primary_after_fork(void)
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

static CUresult make(CUcontext *context, CUdevice device)
{
	struct overhead_context making;
	CUresult result = overhead_begin_context(&making, device, NULL);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuda.cuDevicePrimaryCtxRetain(context, device);
	overhead_end_context(&making, result, result == CUDA_SUCCESS ? *context : NULL);
	return result;
}

CUresult primary_retain(CUcontext *context, CUdevice device)
{
	pthread_mutex_lock(&changing);
	const CUresult result = is_active(device) ? cuda.cuDevicePrimaryCtxRetain(context, device)
						  : make(context, device);

	if (result == CUDA_SUCCESS)
		count_user(device, 1);
	pthread_mutex_unlock(&changing);
	return result;
}

/* The handle; NULL when it is not active. Retaining does not make it anew. */
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

void primary_begin_end(struct primary_end *end, CUdevice device, bool is_reset)
{
	pthread_mutex_lock(&changing);
	const bool is_shared = device >= 0 && device < DEVICES && atomic_load(&users[device]) > 1;

	*end = (struct primary_end){.device = device, .context = context_of(device)};
	if (is_reset || !is_shared)
		meter_forget_context(end->context);
	overhead_begin_forget();
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

void primary_end(const struct primary_end *end, CUresult result)
{
	overhead_end_forget(result == CUDA_SUCCESS ? forget_user(end) : NULL);
	pthread_mutex_unlock(&changing);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	ENTER(cuDevicePrimaryCtxRetain, pctx, dev);
	return primary_retain(pctx, dev);
}

#define ENDS(is_reset, name)                                                                       \
	HOOK(name, (CUdevice device), (device), struct primary_end end;                            \
	     primary_begin_end(&end, device, is_reset), primary_end(&end, result))

ENDS(false, cuDevicePrimaryCtxRelease)
ENDS(false, cuDevicePrimaryCtxRelease_v2)
ENDS(true, cuDevicePrimaryCtxReset)
ENDS(true, cuDevicePrimaryCtxReset_v2)
