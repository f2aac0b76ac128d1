/*
 * What nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1 take, as nvml.h of CUDA 13.4
 * has it: 24 and 32 bytes, without a version. The pinned nvml.h is older.
 */
#pragma once

struct set_limits {
	const char *name_space;
	unsigned long long soft_bytes, hard_bytes;
};

struct get_limits {
	const char *name_space;
	unsigned long long soft_bytes, hard_bytes, used_bytes;
};
