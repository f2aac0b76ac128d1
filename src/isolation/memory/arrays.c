/* Arrays and mipmapped arrays: bytes by format, channels and size. */
#include "books/charge.h"
#include "books/entry.h"
#include "memory/array_bytes.h"

/* Threads may share all of these. */

/* Descriptors differ by call; what they have no member for is 0. A NULL is the driver's to refuse.
 */
#define SHAPE(array, ...)                                                                          \
	((struct array_shape){.format = (array)->Format,                                           \
			      .channels = (array)->NumChannels,                                    \
			      .width = (array)->Width,                                             \
			      .height = (array)->Height,                                           \
			      __VA_ARGS__})
#define IN_3D(array) .flags = (array)->Flags, .depth = (array)->Depth
#define FLAT(array) .depth = 0

#define MAKES(kind, name, wanted, parameters, arguments)                                           \
	GIVES(made &&shape, wanted,                                                                \
	      charge_keep(&charge, kind, (uint64_t)(uintptr_t)*made, charge.bytes), name,          \
	      parameters, arguments)

#define MAKES_ARRAY(name, descriptor, members)                                                     \
	MAKES(KIND_ARRAY, name, array_bytes(&SHAPE(shape, members(shape))),                        \
	      (CUarray * made, const descriptor *shape), (made, shape))

MAKES_ARRAY(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, FLAT)
MAKES_ARRAY(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, FLAT)
MAKES_ARRAY(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, IN_3D)
MAKES_ARRAY(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, IN_3D)
MAKES(KIND_MIPMAP, cuMipmappedArrayCreate, array_mipmap_bytes(&SHAPE(shape, IN_3D(shape)), levels),
      (CUmipmappedArray * made, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels),
      (made, shape, levels))

FREES(KIND_ARRAY, array, cuArrayDestroy, (CUarray array), (array))
FREES(KIND_MIPMAP, array, cuMipmappedArrayDestroy, (CUmipmappedArray array), (array))
