/* Fills are kernels of the driver's own: each is charged as a launch. */
#include "books/enter.h"
#include "compute/meter.h"
#include "driver/stream.h"

/* Threads may share all of these. Of one kind are fills by one function that are about as large. */
#define FILLS(bytes, stream, name, parameters, arguments)                                          \
	HOOK(name, parameters, arguments, struct meter_launch launch;                              \
	     meter_before(&launch, meter_kind((const void *)cuda.name, meter_size(bytes, 0)),      \
			  false, stream),                                                          \
	     meter_after(&launch, result))

#define FILLS_ROW(bits, type)                                                                      \
	FILLS(count *(bits / 8), NULL, cuMemsetD##bits##_v2,                                       \
	      (CUdeviceptr to, type value, size_t count), (to, value, count))                      \
	FILLS(count *(bits / 8), CU_STREAM_PER_THREAD, cuMemsetD##bits##_v2_ptds,                  \
	      (CUdeviceptr to, type value, size_t count), (to, value, count))                      \
	FILLS(count *(bits / 8), stream, cuMemsetD##bits##Async,                                   \
	      (CUdeviceptr to, type value, size_t count, CUstream stream),                         \
	      (to, value, count, stream))                                                          \
	FILLS(count *(bits / 8), stream_per_thread(stream), cuMemsetD##bits##Async_ptsz,           \
	      (CUdeviceptr to, type value, size_t count, CUstream stream),                         \
	      (to, value, count, stream))

#define FILLS_BOX(bits, type)                                                                      \
	FILLS(width *height *(bits / 8), NULL, cuMemsetD2D##bits##_v2,                             \
	      (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),             \
	      (to, pitch, value, width, height))                                                   \
	FILLS(width *height *(bits / 8), CU_STREAM_PER_THREAD, cuMemsetD2D##bits##_v2_ptds,        \
	      (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),             \
	      (to, pitch, value, width, height))                                                   \
	FILLS(width *height *(bits / 8), stream, cuMemsetD2D##bits##Async,                         \
	      (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,              \
	       CUstream stream),                                                                   \
	      (to, pitch, value, width, height, stream))                                           \
	FILLS(width *height *(bits / 8), stream_per_thread(stream), cuMemsetD2D##bits##Async_ptsz, \
	      (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,              \
	       CUstream stream),                                                                   \
	      (to, pitch, value, width, height, stream))

FILLS_ROW(8, unsigned char)
FILLS_ROW(16, unsigned short)
FILLS_ROW(32, unsigned int)
FILLS_BOX(8, unsigned char)
FILLS_BOX(16, unsigned short)
FILLS_BOX(32, unsigned int)
