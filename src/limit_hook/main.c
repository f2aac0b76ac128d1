/*
 * gpu-limit-hook: the driver's memory limit for a container that has a slice, before its first
 *process runs. A createRuntime hook of OCI: root on the host, the state on stdin. A container whose
 *hook fails does not start, so none runs without its limit.
 *
 *	gpu-limit-hook --slice DIRECTORY [--driver-root DIRECTORY] [--cgroup-root DIRECTORY]
 *
 * The sizes are those of the slice's limits file on the host, so a restart gets what holds now, and
 * nothing that the container says. What was done stands in the slice's directory, in
 *`driver-limit`:
 *
 *	cgroup=<directory>
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void refuse(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)fputs("gpu-limit-hook: ", stderr);
	(void)vfprintf(stderr, format, arguments);
	(void)fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

/* How much of the file below the slice's directory fits; -1: it cannot be read. Never waits. */
static ssize_t read_file(const char *slice, const char *name, char *text, size_t bytes)
{
	char path[HOOK_PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%s/%s", slice, name);
	/* A container that is root may lease its limits file, and open() would wait for it. */
	const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	const ssize_t length = file < 0 ? -1 : read(file, text, bytes);

	if (file >= 0)
		close(file);
	return length;
}

static void read_limits(const char *slice, struct limits *limits)
{
	static char text[LIMITS_FILE_BYTES];
	char reason[160];
	const ssize_t length = read_file(slice, "config/limits", text, sizeof(text));

	if (length < 0)
		refuse("%s/config/limits: %s", slice, strerror(errno));
	if (!limits_parse(text, (size_t)length, limits, reason, sizeof(reason)))
		refuse("%s/config/limits, %s", slice, reason);
}

/* Each container has the whole of a limit: two at a time would have twice the slice. */
static void refuse_second(const char *slice, const char *leaf)
{
	char mark[HOOK_PATH_BYTES] = "";
	const ssize_t length = read_file(slice, "driver-limit", mark, sizeof(mark) - 1);

	mark[length > 0 ? length : 0] = '\0';
	mark[strcspn(mark, "\n")] = '\0';
	const char *other = strncmp(mark, "cgroup=", 7) == 0 ? mark + 7 : "";

	if (*other && strcmp(other, leaf) != 0 && container_runs(other))
		refuse("%s: the slice is in use by the container of %s; the driver limits the "
		       "memory of one container only",
		       slice, other);
}

static void write_mark(const char *slice, const char *leaf)
{
	char path[HOOK_PATH_BYTES], fresh[HOOK_PATH_BYTES + 8];

	(void)snprintf(path, sizeof(path), "%s/driver-limit", slice);
	(void)snprintf(fresh, sizeof(fresh), "%s.new", path);
	FILE *file = fopen(fresh, "we");
	const bool is_written = file && fprintf(file, "cgroup=%s\n", leaf) > 0;

	if ((file && fclose(file) != 0) || !is_written || rename(fresh, path) != 0)
		refuse("%s: %s", path, strerror(errno));
}

int main(int count, char **arguments)
{
	static const struct option options[] = {{"slice", required_argument, NULL, 's'},
						{"driver-root", required_argument, NULL, 'd'},
						{"cgroup-root", required_argument, NULL, 'c'},
						{0}};
	static struct limits limits;
	const char *slice = NULL, *driver_root = "/", *tree = NULL;
	char leaf[HOOK_PATH_BYTES];
	int option;

	while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) {
		if (option == 's')
			slice = optarg;
		else if (option == 'd')
			driver_root = optarg;
		else if (option == 'c')
			tree = optarg;
		else
			return 2;
	}
	if (!slice)
		refuse("--slice is missing");
	read_limits(slice, &limits);
	container_cgroup(tree, leaf);
	refuse_second(slice, leaf);
	driver_limit(driver_root, leaf, &limits);
	write_mark(slice, leaf);
	return 0;
}
