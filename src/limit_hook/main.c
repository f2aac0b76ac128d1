/*
 * gpu-limit-hook: the driver's memory limit for a container that has a slice, before its first
 * process runs. A createRuntime hook of OCI: root on the host, the state on stdin. A container
 * whose hook fails does not start, so none runs without its limit.
 *
 *	gpu-limit-hook --slice DIRECTORY [--repair [--process DIRECTORY]] [ROOTS]
 *	gpu-limit-hook --probe FILE [ROOTS]
 *	ROOTS: [--driver-root DIRECTORY] [--cgroup-root DIRECTORY]
 *
 * The sizes are those of the slice's limits file on the host, so a restart gets what holds now, and
 * nothing that the container says. What was done stands in the slice's directory, in
 * `driver-limit`:
 *
 *	cgroup=<directory>
 *	by=repair            where no hook had limited that cgroup
 *
 * and in `driver-revision` the revision of a resized slice's limits, once they hold and no more
 * than that is in use. --repair alone says so: at a start NVIDIA's own hook may set another yet.
 *
 * --repair is for a container that runs already: that of the process whose directory below /proc is
 * given, best by an open descriptor, as a number may be another's by now. It says on stdout whether
 * the limits were `set` or were `held`, or `in use` where a resized slice uses more, and leaves the
 * hook's own mark as it is.
 *
 * --probe proves that the driver limits memory here, and leaves the report in FILE, for the agent,
 * which has no right to try. Whatever fails then is the report, `reason=<text>`, and no error.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *probed; /* the file of the report; NULL: a container is to be limited */
static char probe_cgroup[HOOK_PATH_BYTES];

static void put_file(const char *path, const char *text)
{
	char fresh[HOOK_PATH_BYTES + 8];

	(void)snprintf(fresh, sizeof(fresh), "%s.new", path);
	(void)unlink(fresh); /* what lies there may be a link to another's file */
	const int made = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	FILE *file = made < 0 ? NULL : fdopen(made, "w");
	const bool is_written = file && fputs(text, file) >= 0;

	if ((file && fclose(file) != 0) || !is_written || rename(fresh, path) != 0) {
		(void)fprintf(stderr, "gpu-limit-hook: %s: %s\n", path, strerror(errno));
		exit(1);
	}
}

void refuse(const char *format, ...)
{
	char text[HOOK_PATH_BYTES], line[HOOK_PATH_BYTES + 16];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (!probed) {
		(void)fprintf(stderr, "gpu-limit-hook: %s\n", text);
		exit(1);
	}
	(void)snprintf(line, sizeof(line), "reason=%s\n", text);
	rmdir(probe_cgroup);
	put_file(probed, line);
	exit(0);
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

/*
 * Each container has the whole of a limit: two at a time would have twice the slice. Whether the
 * mark is of this container. A process that is repaired may have gone to a cgroup below its
 * container's, which is the one that is marked: `leaf` becomes that.
 */
static bool refuse_second(const char *slice, char *leaf, bool is_repair)
{
	char mark[HOOK_PATH_BYTES] = "";
	const ssize_t length = read_file(slice, "driver-limit", mark, sizeof(mark) - 1);

	mark[length > 0 ? length : 0] = '\0';
	mark[strcspn(mark, "\n")] = '\0';
	const char *other = strncmp(mark, "cgroup=", 7) == 0 ? mark + 7 : "";
	const size_t size = strlen(other);

	if (is_repair && size && strncmp(leaf, other, size) == 0 && leaf[size] == '/')
		leaf[size] = '\0';

	if (*other && strcmp(other, leaf) != 0 && container_runs(other))
		refuse("%s: the slice is in use by the container of %s; the driver limits the "
		       "memory of one container only",
		       slice, other);
	return strcmp(other, leaf) == 0;
}

/* Until this program ends: the hook and a repair of one slice go one after the other. */
static void lock_slice(const char *slice)
{
	const int directory = open(slice, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (directory < 0 || flock(directory, LOCK_EX) != 0)
		refuse("%s: %s", slice, strerror(errno));
}

static void limit_container(const char *slice, const char *driver_root, const char *tree,
			    const char *process, bool is_repair)
{
	static struct limits limits;
	char leaf[HOOK_PATH_BYTES], path[HOOK_PATH_BYTES], mark[HOOK_PATH_BYTES + 32];

	lock_slice(slice);
	read_limits(slice, &limits);
	container_cgroup(cgroup_tree(tree), process, leaf);
	const bool is_marked = refuse_second(slice, leaf, is_repair);
	const unsigned done = driver_limit(driver_root, leaf, &limits, is_repair);
	const bool is_exceeded = limits.revision && done & LIMIT_EXCEEDED;
	const bool is_set = done & LIMIT_SET;
	(void)snprintf(path, sizeof(path), "%s/driver-limit", slice);
	(void)snprintf(mark, sizeof(mark), "cgroup=%s\n%s", leaf,
		       is_repair && is_set ? "by=repair\n" : "");
	if (!is_repair || !is_marked) /* NVIDIA's hook leaves no mark */
		put_file(path, mark);
	(void)snprintf(path, sizeof(path), "%s/driver-revision", slice);
	(void)snprintf(mark, sizeof(mark), "%u\n", limits.revision);
	if (is_repair && limits.revision && !is_exceeded)
		put_file(path, mark);
	if (is_repair)
		(void)puts(is_exceeded ? "in use" : is_set ? "set" : "held");
}

/* In a cgroup of our own, which nobody is in; one that a probe has left is taken again. */
static void probe(const char *driver_root, const char *tree)
{
	static char report[LIMITS_FILE_BYTES];

	tree = cgroup_tree(tree);
	(void)snprintf(probe_cgroup, sizeof(probe_cgroup), "%s/gpu-device-plugin-probe", tree);
	if (mkdir(probe_cgroup, 0755) != 0 && errno != EEXIST)
		refuse("%s: %s", probe_cgroup, strerror(errno));
	FILE *file = fmemopen(report, sizeof(report), "w");

	if (!file)
		refuse("%s", strerror(errno));
	driver_probe(driver_root, tree, probe_cgroup, file);
	(void)fclose(file);
	rmdir(probe_cgroup);
	put_file(probed, report);
}

int main(int count, char **arguments)
{
	static const struct option options[] = {{"slice", required_argument, NULL, 's'},
						{"probe", required_argument, NULL, 'p'},
						{"repair", no_argument, NULL, 'r'},
						{"process", required_argument, NULL, 'i'},
						{"driver-root", required_argument, NULL, 'd'},
						{"cgroup-root", required_argument, NULL, 'c'},
						{0}};
	const char *slice = NULL, *driver_root = "/", *tree = NULL, *process = NULL;
	bool is_repair = false;
	int option;

	while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) {
		if (option == 's')
			slice = optarg;
		else if (option == 'p')
			probed = optarg;
		else if (option == 'r')
			is_repair = true;
		else if (option == 'i')
			process = optarg;
		else if (option == 'd')
			driver_root = optarg;
		else if (option == 'c')
			tree = optarg;
		else
			return 2;
	}
	if (!slice == !probed)
		return 2;
	if (probed)
		probe(driver_root, tree);
	else
		limit_container(slice, driver_root, tree, process, is_repair);
	return 0;
}
