/* Contexts of a program's own: made and ended. */
#include "books/entry.h"
#include "compute/meter.h"
#include "driver/cards.h"
#include "unasked/overhead.h"
#include "driver/context_scope.h"

/* Threads may share all of these. */

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
	     overhead_begin_forget(),                                                              \
	     overhead_end_forget(result == CUDA_SUCCESS && (has_ended) ? context : NULL))

ENDS(true, cuCtxDestroy)
ENDS(true, cuCtxDestroy_v2)
/* One of its users less: the last one's call ends it, and then it is no longer current here. */
ENDS(context_current() != context, cuCtxDetach)
