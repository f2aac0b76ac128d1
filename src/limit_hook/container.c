/* From the state that a container runtime hands its hooks to the container's cgroup. */
#include "hook.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { STATE_BYTES = 1024 * 1024 };

static const char *skip_string(const char *at)
{
	while (*at && *at != '"')
		at += *at == '\\' && at[1] ? 2 : 1;
	return at;
}

/* The "pid" of the outermost object. Below it stand annotations, which the pod's author writes. */
static long state_pid(const char *state)
{
	unsigned depth = 0;

	for (const char *at = state; *at; at++) {
		depth += *at == '{' || *at == '[' ? 1u : 0u;
		depth -= *at == '}' || *at == ']' ? 1u : 0u;
		if (*at != '"')
			continue;
		const char *name = at + 1;

		at = skip_string(name);
		if (!*at)
			break;
		const char *colon = at + 1 + strspn(at + 1, " \t\r\n");

		if (depth == 1 && *colon == ':' && at - name == 3 && strncmp(name, "pid", 3) == 0)
			return strtol(colon + 1, NULL, 10);
	}
	return 0;
}

/* The line of cgroup v2 in a process's file "cgroup", cut to its path. */
static void read_cgroup(const char *process, char path[HOOK_PATH_BYTES])
{
	char name[HOOK_PATH_BYTES];

	(void)snprintf(name, sizeof(name), "%s/cgroup", process);
	FILE *file = fopen(name, "re");
	if (!file)
		refuse("%s: %s", name, strerror(errno));
	while (fgets(path, HOOK_PATH_BYTES, file)) {
		const size_t length = strcspn(path, "\n");

		if (strncmp(path, "0::/", 4) != 0)
			continue;
		if (!path[length])
			refuse("%s: the path is longer than %d bytes", name, HOOK_PATH_BYTES);
		path[length] = '\0';
		(void)fclose(file);
		memmove(path, path + 3, length - 2);
		return;
	}
	refuse("%s: no line of cgroup v2", name);
}

const char *cgroup_tree(const char *tree)
{
	struct statfs system;

	if (!tree &&
	    (statfs("/sys/fs/cgroup", &system) != 0 || system.f_type != CGROUP2_SUPER_MAGIC))
		refuse("/sys/fs/cgroup is not cgroup v2; the driver limits memory by nothing else");
	return tree ? tree : "/sys/fs/cgroup";
}

void container_cgroup(const char *tree, const char *process, char leaf[HOOK_PATH_BYTES])
{
	static char state[STATE_BYTES];
	char path[HOOK_PATH_BYTES], told[64];
	struct stat status;

	if (!process) {
		state[fread(state, 1, sizeof(state) - 1, stdin)] = '\0';
		const long pid = state_pid(state);

		if (pid <= 0)
			refuse("the state on stdin names no pid");
		(void)snprintf(told, sizeof(told), "/proc/%ld", pid);
		process = told;
	}
	read_cgroup(process, path);
	if (strcmp(path, "/") == 0 || strstr(path, "/.."))
		refuse("%s is in cgroup %s, which is no container's", process, path);
	const int length = snprintf(leaf, HOOK_PATH_BYTES, "%s%s", tree, path);

	if (length >= HOOK_PATH_BYTES || stat(leaf, &status) != 0 || !S_ISDIR(status.st_mode))
		refuse("%s: the cgroup of %s is not there", leaf, process);
}

bool container_runs(const char *leaf)
{
	char path[HOOK_PATH_BYTES + 32], line[64];
	bool runs = false;

	(void)snprintf(path, sizeof(path), "%s/cgroup.events", leaf);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		runs = runs || strcmp(line, "populated 1\n") == 0;
	if (file)
		(void)fclose(file);
	return runs;
}
