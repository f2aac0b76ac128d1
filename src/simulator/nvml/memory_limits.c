/*
 * Limits of a cgroup's memory on a card, from driver 615 on. nvml.h of CUDA 13.4 has the order of
 * the checks.
 */
#include "call_frame.h"
#include "nvml_memory_limits.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device,
						 const struct set_limits *limits);
EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get_limits *limits);

static bool is_administrator(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

	return syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_SYS_ADMIN & 1u);
}

/*
 * The directory's place in the tree, as /proc/PID/cgroup has it. A directory of another file
 * system stands for a cgroup by its whole path. False: it cannot be opened.
 */
static bool place_of(const char *name_space, char place[PATH_MAX], uint64_t *inode)
{
	struct stat status, above;
	struct statfs system;

	if (!realpath(name_space, place) || stat(place, &status) != 0 ||
	    statfs(place, &system) != 0 || !S_ISDIR(status.st_mode))
		return false;
	*inode = status.st_ino;
	for (char *slash = strchr(place + 1, '/'); system.f_type == CGROUP2_SUPER_MAGIC;
	     slash = slash ? strchr(slash + 1, '/') : NULL) {
		if (!slash) {
			memcpy(place, "/", 2);
			break;
		}
		*slash = '\0';
		const bool is_root = stat(place, &above) == 0 && above.st_dev == status.st_dev;
		*slash = '/';
		if (is_root) {
			memmove(place, slash, strlen(slash) + 1);
			break;
		}
	}
	return true;
}

/* The group behind a directory, or why there is none. */
static nvmlReturn_t find_group(struct call *call, const char *name_space,
			       struct gpusim_group **group)
{
	char place[PATH_MAX];
	uint64_t inode;

	if (call->instance || call->card->mig_enabled || call->card->memory_unified)
		return NVML_ERROR_NOT_SUPPORTED;
	if (!place_of(name_space, place, &inode))
		return NVML_ERROR_OPERATING_SYSTEM;
	*group = strcmp(place, "/") == 0 ? NULL
					 : gpusim_group_at(call->node, call->slot, place, inode);
	return *group ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* dmem: what a group is guaranteed is guaranteed by those above it. Nobody takes it back. */
static void guarantee_above(struct call *call, const struct gpusim_group *group, uint64_t more)
{
	char place[sizeof(group->path)];
	char *slash;

	memcpy(place, group->path, sizeof(place));
	while ((slash = strrchr(place, '/')) && slash > place) {
		*slash = '\0';
		struct gpusim_group *above = gpusim_group_at(call->node, call->slot, place, 0);
		if (above)
			above->soft_bytes[call->slot] += more;
	}
}

static bool is_more_than(unsigned long long limit, uint64_t bytes)
{
	return limit > bytes && limit != UINT64_MAX;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const struct set_limits *limits)
{
	struct gpusim_group *group;
	struct gpusim_node *node;
	struct call call;
	nvmlReturn_t result = ready(&node, __func__);

	if (result == NVML_SUCCESS && !is_administrator())
		result = NVML_ERROR_NO_PERMISSION;
	if (result == NVML_SUCCESS)
		result = enter_device(&call, device, __func__);
	if (result != NVML_SUCCESS)
		return result;
	if (!limits || !limits->name_space || limits->soft_bytes > limits->hard_bytes ||
	    is_more_than(limits->hard_bytes, call.card->memory_total_bytes) ||
	    is_more_than(limits->soft_bytes, call.card->memory_total_bytes))
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	result = find_group(&call, limits->name_space, &group);
	if (result != NVML_SUCCESS)
		return leave(&call, result);
	const bool is_dmem = call.node->memory_accounting == GPUSIM_DMEM;
	if (!is_dmem && gpusim_group_used(call.node, group, call.slot) > limits->hard_bytes)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	if (is_dmem)
		guarantee_above(&call, group, limits->soft_bytes - group->soft_bytes[call.slot]);
	group->soft_bytes[call.slot] = limits->soft_bytes;
	group->hard_bytes[call.slot] = limits->hard_bytes;
	group->limited |= 1ull << call.slot;
	return leave(&call, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get_limits *limits)
{
	struct gpusim_group *group;
	struct call call;
	nvmlReturn_t result = enter_device(&call, device, __func__);

	if (result != NVML_SUCCESS)
		return result;
	if (!limits || !limits->name_space)
		return leave(&call, NVML_ERROR_INVALID_ARGUMENT);
	result = find_group(&call, limits->name_space, &group);
	if (result != NVML_SUCCESS)
		return leave(&call, result);
	const bool is_set = group->limited >> call.slot & 1u;
	if (!is_set && call.node->unset_is_not_found)
		return leave(&call, NVML_ERROR_NOT_FOUND);
	if (!is_set && call.node->memory_accounting == GPUSIM_MISC)
		return leave(&call, NVML_ERROR_NOT_SUPPORTED);
	limits->soft_bytes = group->soft_bytes[call.slot];
	limits->hard_bytes = is_set ? group->hard_bytes[call.slot] : UINT64_MAX;
	limits->used_bytes = gpusim_group_used(call.node, group, call.slot);
	return leave(&call, NVML_SUCCESS);
}
