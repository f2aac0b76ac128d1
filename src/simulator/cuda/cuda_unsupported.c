/*
 * Entry points that the driver has and this one does not do: each exists, so
 * that programs load, and says CUDA_ERROR_NOT_SUPPORTED. Weak: whatever is
 * written elsewhere takes the place. cuda.h is not included here, because its
 * prototypes differ from one another and none of the arguments is looked at.
 */
enum { NOT_SUPPORTED = 801 };

#define ENTRY(name, version, null, symbol)                                                         \
	__attribute__((weak, visibility("default"))) int symbol(void);                             \
	int symbol(void)                                                                           \
	{                                                                                          \
		return NOT_SUPPORTED;                                                              \
	}
#include "symbols.def"
