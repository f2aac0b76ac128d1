/*
 * Memory of cards by cgroup, as drivers from 615 on count it. Two backends: dmem charges always,
 * and every group above binds; misc charges only below a limit, and the nearest one alone binds.
 */
#include "state.h"

#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#define FIRST_DRIVER 615u

static bool counts(const struct gpusim_node *node, uint32_t card)
{
	return strtoul(node->driver_version, NULL, 10) >= FIRST_DRIVER &&
	       node->memory_accounting != GPUSIM_NO_ACCOUNTING && !node->cards[card].mig_enabled;
}

static bool is_known(const struct gpusim_node *node, const struct gpusim_group *group)
{
	return group->path[0] && group->driver_loads == node->driver_loads;
}

/* Two groups of one path are of two times: one is gone, and above nobody. */
static bool is_within(const struct gpusim_group *group, const struct gpusim_group *above)
{
	const size_t length = strlen(above->path);

	return group == above ||
	       (strncmp(group->path, above->path, length) == 0 &&
		(group->path[length] == '/' || (length == 1 && group->path[1] != '\0')));
}

static bool has_processes(const struct gpusim_node *node, uint32_t slot)
{
	for (uint32_t i = 0; i < GPUSIM_PROCESSES; i++) {
		if (node->processes[i].used && node->processes[i].charged_bytes &&
		    node->processes[i].group == slot)
			return true;
	}
	return false;
}

/* By inode; a process that does not see the tree has a path alone, of the newest group there. */
static struct gpusim_group *find(struct gpusim_node *node, const char *path, uint64_t inode)
{
	struct gpusim_group *newest = NULL;

	for (uint32_t slot = 0; slot < GPUSIM_GROUPS; slot++) {
		struct gpusim_group *group = &node->groups[slot];

		if (!is_known(node, group))
			continue;
		if (inode && group->inode == inode)
			return group;
		if (strcmp(group->path, path) == 0 && (!inode || !group->inode) &&
		    (!newest || group->touched > newest->touched))
			newest = group;
	}
	return newest;
}

static struct gpusim_group *free_slot(struct gpusim_node *node)
{
	struct gpusim_group *oldest = NULL;

	for (uint32_t slot = 0; slot < GPUSIM_GROUPS; slot++) {
		struct gpusim_group *group = &node->groups[slot];

		if (!is_known(node, group))
			return group;
		if ((!oldest || group->touched < oldest->touched) && !has_processes(node, slot))
			oldest = group;
	}
	return oldest;
}

struct gpusim_group *gpusim_group_at(struct gpusim_node *node, uint32_t card, const char *path,
				     uint64_t inode)
{
	struct gpusim_group *group;

	if (!counts(node, card) || strlen(path) >= sizeof(group->path))
		return NULL;
	group = find(node, path, inode);
	if (!group) {
		group = free_slot(node);
		if (!group)
			return NULL;
		*group = (struct gpusim_group){.driver_loads = node->driver_loads};
		memcpy(group->path, path, strlen(path) + 1);
	}
	if (inode)
		group->inode = inode;
	group->touched = ++node->groups_touched;
	return group;
}

/* The inode of our group where the tree is mounted for us; in a cgroup namespace too. */
static uint64_t visible_inode(const char *path)
{
	static const char *const trees[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char place[512];
	struct statfs system;
	struct stat status;

	for (size_t i = 0; i < sizeof(trees) / sizeof(trees[0]); i++) {
		(void)snprintf(place, sizeof(place), "%s%s", trees[i], path);
		if (statfs(place, &system) == 0 && system.f_type == CGROUP2_SUPER_MAGIC &&
		    stat(place, &status) == 0)
			return status.st_ino;
	}
	return 0;
}

struct gpusim_group *gpusim_own_group(struct gpusim_node *node, uint32_t card)
{
	const char *told = getenv("GPU_SIMULATOR_CGROUP"); // NOLINT(concurrency-mt-unsafe)
	char line[512];
	struct stat status;

	if (!counts(node, card))
		return NULL;
	if (told)
		return gpusim_group_at(node, card, told,
				       stat(told, &status) == 0 ? status.st_ino : 0);
	FILE *file = fopen("/proc/self/cgroup", "re");
	bool found = false;
	while (file && !found && fgets(line, sizeof(line), file))
		found = strncmp(line, "0::/", 4) == 0;
	if (file)
		(void)fclose(file);
	if (!found)
		return NULL;
	line[strcspn(line, "\n")] = '\0';
	return gpusim_group_at(node, card, line + 3, visible_inode(line + 3));
}

static bool is_limited(const struct gpusim_node *node, const struct gpusim_group *group,
		       uint32_t card)
{
	return is_known(node, group) && (group->limited >> card & 1u);
}

static const struct gpusim_group *nearest(const struct gpusim_node *node,
					  const struct gpusim_group *group, uint32_t card)
{
	const struct gpusim_group *found = NULL;

	for (uint32_t slot = 0; slot < GPUSIM_GROUPS; slot++) {
		const struct gpusim_group *above = &node->groups[slot];

		if (is_limited(node, above, card) && is_within(group, above) &&
		    (!found || strlen(above->path) > strlen(found->path)))
			found = above;
	}
	return found;
}

uint64_t gpusim_group_used(const struct gpusim_node *node, const struct gpusim_group *group,
			   uint32_t card)
{
	uint64_t bytes = 0;

	for (uint32_t slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &node->processes[slot];
		const struct gpusim_group *payer = &node->groups[process->group % GPUSIM_GROUPS];

		if (process->used && process->card == card && process->charged_bytes &&
		    (node->memory_accounting == GPUSIM_DMEM ? is_within(payer, group)
							    : nearest(node, payer, card) == group))
			bytes += process->charged_bytes;
	}
	return bytes;
}

bool gpusim_group_allows(const struct gpusim_node *node, const struct gpusim_group *group,
			 uint32_t card, uint64_t bytes)
{
	const bool is_alone = node->memory_accounting == GPUSIM_MISC;
	const struct gpusim_group *binding = group ? nearest(node, group, card) : NULL;

	for (uint32_t slot = 0; group && slot < GPUSIM_GROUPS; slot++) {
		const struct gpusim_group *above = &node->groups[slot];

		if (!is_limited(node, above, card) || !is_within(group, above) ||
		    (is_alone && above != binding))
			continue;
		const uint64_t used = gpusim_group_used(node, above, card);

		if (used > above->hard_bytes[card] || bytes > above->hard_bytes[card] - used)
			return false;
	}
	return true;
}

void gpusim_group_charge(const struct gpusim_node *node, const struct gpusim_group *group,
			 struct gpusim_process *process, uint64_t bytes)
{
	if (!group ||
	    (node->memory_accounting == GPUSIM_MISC && !nearest(node, group, process->card)))
		return;
	process->group = (uint32_t)(group - node->groups);
	process->charged_bytes += bytes;
}

bool gpusim_own_limit(struct gpusim_node *node, uint32_t card, uint64_t *hard, uint64_t *used)
{
	const struct gpusim_group *group = gpusim_own_group(node, card);

	if (!group || !is_limited(node, group, card) || group->hard_bytes[card] == UINT64_MAX)
		return false;
	*hard = group->hard_bytes[card];
	*used = gpusim_group_used(node, group, card);
	return true;
}
