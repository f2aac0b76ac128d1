/*
 * The rest of what nvml.h declares: present, and not supported. The functions
 * take no arguments here; with the C calling conventions of Linux a caller that
 * passes some is answered all the same.
 */
typedef unsigned nvml_result; /* nvmlReturn_t; nvml.h would declare other prototypes */

#define NVML_SUCCESS 0u
#define NVML_ERROR_NOT_SUPPORTED 3u

struct gpusim_node;
nvml_result ready(struct gpusim_node **node, const char *function);

#define SYMBOL(name, since)
#define UNSUPPORTED(name, since)                                                                   \
	__attribute__((visibility("default"))) nvml_result name(void);                             \
	nvml_result name(void)                                                                     \
	{                                                                                          \
		struct gpusim_node *node;                                                          \
		nvml_result result = ready(&node, __func__);                                       \
                                                                                                   \
		return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;                 \
	}

#include "symbols.def"
