/* Pure arithmetic over shapes; the formats are those of cuda.h up to 13.5. */
#include "array_bytes.h"

#include "api.h"

#include <stdbool.h>

enum { UNKNOWN_BITS = 32 }; /* a channel is never wider than a float */

/* Bits a texel where the format fixes its channels; 0 where channels count. */
static unsigned fixed_bits(unsigned format)
{
	if (format >= 0xc0 && format <= 0xcb) { /* (U|S)NORM_INT(8|16)X(1|2|4) */
		static const unsigned channels[] = { 1, 2, 4 };
		const unsigned wide = (format - 0xc0) / 3 % 2 ? 16 : 8;

		return channels[(format - 0xc0) % 3] * wide;
	}
	switch (format) {
	case 0x91: /* BC1 */
	case 0x92:
	case 0x97: /* BC4 */
	case 0x98:
		return 4;
	case 0x93: /* BC2 */
	case 0x94:
	case 0x95: /* BC3 */
	case 0x96:
	case 0x99: /* BC5 */
	case 0x9a:
	case 0x9b: /* BC6H */
	case 0x9c:
	case 0x9d: /* BC7 */
	case 0x9e:
		return 8;
	case 0xb0: /* NV12: 8 bits of 4:2:0 */
	case 0x53:
	case 0x59:
		return 12;
	case 0xa2: /* NV16 and packed 4:2:2 of 8 bits */
	case 0xa5:
	case 0x51:
	case 0x55:
	case 0x5b:
		return 16;
	case 0x9f: /* P010, P016: 16 bits of 4:2:0 */
	case 0xa1:
	case 0x54:
	case 0x5a:
	case 0xb2: /* 8 bits of 4:4:4 */
	case 0xb4:
	case 0x52:
	case 0x57:
	case 0x5d:
		return 24;
	case 0xa3: /* 16 bits of 4:2:2; AYUV, Y410, 10:10:10:2 */
	case 0xa4:
	case 0xa6:
	case 0xa7:
	case 0xa8:
	case 0xa9:
	case 0x50:
	case 0x56:
	case 0x5c:
		return 32;
	case 0xb3: /* 16 bits of 4:4:4 */
	case 0xb5:
	case 0x58:
	case 0x5e:
		return 48;
	case 0xb1: /* Y416 */
		return 64;
	default:
		return 0;
	}
}

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

uint64_t array_bytes(const struct array_shape *shape)
{
	const unsigned fixed = fixed_bits(shape->format);
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

uint64_t array_mipmap_bytes(const struct array_shape *shape, unsigned levels)
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
