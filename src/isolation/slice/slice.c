/* Reading the agent's files, and the decision between inert, closed and open. */
#include "slice/slice.h"

#include "slice/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGENT_ROOT "/run/gpu-device-plugin"

static _Atomic int state = SLICE_UNKNOWN;
LOCK_OF_PROCESS(deciding)
static struct limits limits;
static _Atomic uint32_t followed; /* the number that was told last */
static char root[256];
static bool is_of_agent;

/*
 * Writes "gpuslice: ...\n" to stderr in one write, so that lines of several
 * processes do not mix. Keeps errno: we run inside other people's calls. Any
 * thread.
 */
void log_line(const char *format, ...)
{
	int saved = errno;
	char line[768];
	const int prefix = snprintf(line, sizeof(line), "gpuslice: ");
	va_list arguments;

	va_start(arguments, format);
	int written =
		vsnprintf(line + prefix, sizeof(line) - (size_t)prefix - 1, format, arguments);
	va_end(arguments);
	if (written > 0) {
		size_t length = (size_t)prefix + (size_t)written;

		if (length > sizeof(line) - 2)
			length = sizeof(line) - 2;
		/* A file that is not text may be quoted here; it stays one line. */
		for (size_t i = 0; i < length; i++)
			if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
				line[i] = '?';
		line[length++] = '\n';
		/* Nothing can be done when stderr is closed. */
		ssize_t ignored = write(STDERR_FILENO, line, length);
		(void)ignored;
	}
	errno = saved;
}

void slice_close(const char *format, ...)
{
	static atomic_bool is_told;
	char reason[600];
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	atomic_store(&state, SLICE_CLOSED);
	if (!atomic_exchange(&is_told, true))
		log_line("no GPU for this container: %s", reason);
}

/* Anything but a clear "not there" counts as there. */
static bool exists(const char *path)
{
	struct stat status;

	return lstat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool slice_is_meant(void)
{
	const char *wanted = secure_getenv("GPUSLICE_ROOT");

	return exists(AGENT_ROOT "/config") || (wanted && *wanted);
}

/* False: inert. The environment counts only where no agent has been. */
static bool find_root(void)
{
	is_of_agent = exists(AGENT_ROOT "/config");
	if (is_of_agent) {
		(void)snprintf(root, sizeof(root), "%s", AGENT_ROOT);
		return true;
	}
	const char *wanted = secure_getenv("GPUSLICE_ROOT");

	if (!wanted || !*wanted)
		return false;
	if (strlen(wanted) >= sizeof(root)) {
		slice_close("GPUSLICE_ROOT is too long");
		return true;
	}
	(void)snprintf(root, sizeof(root), "%s", wanted);
	return true;
}

enum reading { LIMITS_READ, LIMITS_BAD, LIMITS_UNREADABLE };

/* In one read, which for a regular file gets all of it. */
static enum reading read_limits(struct limits *found, char *reason, size_t reason_bytes)
{
	static char text[LIMITS_FILE_BYTES + 1];
	char path[300], fault[160];

	(void)snprintf(path, sizeof(path), "%s/config/limits", root);
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	const ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof(text));
	enum reading reading = length < 0 ? LIMITS_UNREADABLE : LIMITS_BAD;

	if (length < 0)
		(void)snprintf(reason, reason_bytes, "%s: %m", path);
	else if (length > LIMITS_FILE_BYTES)
		(void)snprintf(reason, reason_bytes, "%s: longer than %d bytes", path,
			       LIMITS_FILE_BYTES);
	else if (!limits_parse(text, (size_t)length, found, fault, sizeof(fault)))
		(void)snprintf(reason, reason_bytes, "%s, %s", path, fault);
	else
		reading = LIMITS_READ;
	if (fd >= 0)
		close(fd);
	return reading;
}

static void decide(void)
{
	char reason[600];

	if (!find_root()) {
		atomic_store(&state, SLICE_INERT);
		return;
	}
	if (atomic_load(&state) == SLICE_CLOSED)
		return;
	if (read_limits(&limits, reason, sizeof(reason)) != LIMITS_READ) {
		slice_close("%s", reason);
		return;
	}
	atomic_store(&state, SLICE_OPEN);
}

enum slice_state slice_state(void)
{
	if (atomic_load_explicit(&state, memory_order_acquire) == SLICE_UNKNOWN) {
		const int saved = errno;

		process_in_children(deciding_in_child);
		pthread_mutex_lock(&deciding);
		if (atomic_load(&state) == SLICE_UNKNOWN)
			decide();
		pthread_mutex_unlock(&deciding);
		errno = saved;
	}
	return (enum slice_state)atomic_load_explicit(&state, memory_order_acquire);
}

/*
 * The cards and the policy of a process stay; a file that is not understood changes nothing. False:
 * it could not be read, for instance without a free descriptor, which is said once.
 */
static bool take_over(void)
{
	static struct limits fresh;
	static enum reading before;
	char reason[600];
	const enum reading reading = read_limits(&fresh, reason, sizeof(reason));

	if (reading != LIMITS_READ && !(reading == LIMITS_UNREADABLE && before == reading))
		log_line("the slice keeps its size: %s", reason);
	before = reading;
	if (reading != LIMITS_READ || fresh.revision <= limits.revision ||
	    strcmp(fresh.slice, limits.slice) != 0)
		return reading != LIMITS_UNREADABLE;
	for (unsigned i = 0; i < fresh.card_count; i++) {
		const int card = slice_card(fresh.cards[i].uuid);

		if (card < 0)
			continue;
		limits.cards[card].memory_bytes = fresh.cards[i].memory_bytes;
		limits.cards[card].core_percent = fresh.cards[i].core_percent;
	}
	limits.revision = fresh.revision;
	return true;
}

void slice_take_newer(void)
{
	pthread_mutex_lock(&deciding);
	take_over();
	pthread_mutex_unlock(&deciding);
}

bool slice_follow(uint32_t told)
{
	if (atomic_load_explicit(&followed, memory_order_relaxed) == told)
		return true;
	const int saved = errno;

	pthread_mutex_lock(&deciding);
	const bool is_followed = atomic_load(&followed) == told || take_over();

	if (is_followed)
		atomic_store(&followed, told);
	pthread_mutex_unlock(&deciding);
	errno = saved;
	return is_followed;
}

const struct limits *slice_limits(void)
{
	return &limits;
}

const char *slice_root(void)
{
	return root;
}

bool slice_is_of_agent(void)
{
	return is_of_agent;
}

int slice_card(const char *uuid)
{
	for (unsigned i = 0; i < limits.card_count; i++)
		if (strcasecmp(limits.cards[i].uuid, uuid) == 0)
			return (int)i;
	return -1;
}
