/* Arrays and mipmapped arrays: bytes by format, channels and size. */
#include "books/memory_charge.h"
#include "books/enter.h"

#include <stdbool.h>
#include <stdint.h>

struct array_shape {
	unsigned format; /* CUarray_format, also of later CUDA versions */
	unsigned channels;
	unsigned flags;                /* CUDA_ARRAY3D_* */
	uint64_t width, height, depth; /* 0 height or depth: there is none */
};

/* The formats are those of cuda.h up to 13.5. */
enum { UNKNOWN_BITS = 32 }; /* a channel is never wider than a float */

/*
 * Bits a texel where the format fixes its channels; 0 where channels count.
 * 4:2:0 stores half a texel of colour more, 4:2:2 a whole, 4:4:4 two.
 */
static const unsigned char fixed_bits[] = {
	[0x50] = 32,                                                     /* 10:10:10:2 */
	[0x51] = 16, [0x52] = 24, [0x53] = 12, [0x54] = 24, [0x55] = 16, /* packed, semiplanar */
	[0x56] = 32, [0x57] = 24, [0x58] = 48, [0x59] = 12, [0x5a] = 24, [0x5b] = 16, [0x5c] = 32,
	[0x5d] = 24, [0x5e] = 48,                                                    /* planar */
	[0x91] = 4,  [0x92] = 4,                                                     /* BC1 */
	[0x93] = 8,  [0x94] = 8,  [0x95] = 8,  [0x96] = 8,                           /* BC2, BC3 */
	[0x97] = 4,  [0x98] = 4,                                                     /* BC4 */
	[0x99] = 8,  [0x9a] = 8,  [0x9b] = 8,  [0x9c] = 8,  [0x9d] = 8,  [0x9e] = 8, /* BC5 to BC7
										      */
	[0x9f] = 24, [0xa1] = 24,                           /* P010, P016 */
	[0xa2] = 16, [0xa3] = 32, [0xa4] = 32,              /* NV16, P210, P216 */
	[0xa5] = 16, [0xa6] = 32, [0xa7] = 32,              /* YUY2, Y210, Y216 */
	[0xa8] = 32, [0xa9] = 32, [0xb1] = 64,              /* AYUV, Y410, Y416 */
	[0xb0] = 12,                                        /* NV12 */
	[0xb2] = 24, [0xb3] = 48, [0xb4] = 24, [0xb5] = 48, /* 4:4:4 */
	[0xc0] = 8,  [0xc1] = 16, [0xc2] = 32, [0xc3] = 16, [0xc4] = 32, [0xc5] = 64, /* UNORM */
	[0xc6] = 8,  [0xc7] = 16, [0xc8] = 32, [0xc9] = 16, [0xca] = 32, [0xcb] = 64, /* SNORM */
};

static unsigned channel_bits(unsigned format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 8;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 16;
	default:
		return UNKNOWN_BITS;
	}
}

/* Blocks of 4 x 4 texels are stored whole. */
static bool is_block_compressed(unsigned format)
{
	return format >= 0x91 && format <= 0x9e;
}

static uint64_t at_least_one(uint64_t size)
{
	return size ? size : 1;
}

static uint64_t whole_blocks(uint64_t size)
{
	return size > UINT64_MAX - 3 ? size : (size + 3) / 4 * 4;
}

/* UINT64_MAX when the product does not fit: more than any slice. */
static uint64_t array_bytes(const struct array_shape *shape)
{
	const unsigned fixed = shape->format < sizeof(fixed_bits) ? fixed_bits[shape->format] : 0;
	uint64_t width = shape->width, height = at_least_one(shape->height);
	uint64_t bits = fixed ? fixed : (uint64_t)channel_bits(shape->format) * shape->channels;

	/* Without memory of their own: it comes from cuMemCreate, which is charged. */
	if (shape->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	if (is_block_compressed(shape->format)) {
		width = whole_blocks(width);
		height = whole_blocks(height);
	}
	if (__builtin_mul_overflow(bits, width, &bits) ||
	    __builtin_mul_overflow(bits, height, &bits) ||
	    __builtin_mul_overflow(bits, at_least_one(shape->depth), &bits) ||
	    bits > UINT64_MAX - 7)
		return UINT64_MAX;
	return (bits + 7) / 8;
}

static uint64_t halved(uint64_t size)
{
	return size > 1 ? size / 2 : size;
}

/* The sum of the levels; more levels than the size allows count as the most it allows. */
static uint64_t array_mipmap_bytes(const struct array_shape *shape, unsigned levels)
{
	struct array_shape level = *shape;
	/* Layers and cube faces are not made smaller. */
	const bool is_layered = shape->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t sum = 0;

	for (unsigned i = 0; i < at_least_one(levels); i++) {
		if (__builtin_add_overflow(sum, array_bytes(&level), &sum))
			return UINT64_MAX;
		if (level.width <= 1 && level.height <= 1 && (is_layered || level.depth <= 1))
			break;
		level.width = halved(level.width);
		level.height = halved(level.height);
		if (!is_layered)
			level.depth = halved(level.depth);
	}
	return sum;
}

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
	ALLOCATES(made &&shape, wanted,                                                            \
		  charge_keep(&charge, kind, (uint64_t)(uintptr_t)*made, wanted, false), name,     \
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
