/* The outside interface: whole nodes made, changed and told as text. */
#include "control.h"
#include "fields.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EVENT_XID 8u /* nvmlEventTypeXidCriticalError */

static _Thread_local char reason[512];

__attribute__((format(printf, 2, 3))) static int fail(int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	(void)vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	return -error;
}

const char *gpusim_error(void)
{
	return reason;
}

/* A card that is gone or lost comes back without limits. */
static void forget_limits(struct gpusim_node *node)
{
	for (uint32_t card = 0; card < node->cards_count; card++) {
		const bool is_here = node->cards[card].present && !node->cards[card].lost;

		for (uint32_t slot = 0; !is_here && slot < GPUSIM_GROUPS; slot++) {
			node->groups[slot].limited &= ~(1ull << card);
			node->groups[slot].soft_bytes[card] = 0;
		}
	}
}

/* Every line into the node; empty lines and comments are skipped. */
static int assign_lines(struct gpusim_node *node, const char *lines)
{
	for (const char *line = lines; *line;) {
		size_t length = strcspn(line, "\n");
		if (length > 0 && *line != '#') {
			const char *wrong = gpusim_assign(node, line, length);
			if (wrong)
				return fail(EINVAL, "\"%.*s\": %s", (int)length, line, wrong);
		}
		line += length + (line[length] == '\n');
	}
	if (node->cards_count > GPUSIM_CARDS)
		return fail(EINVAL, "%u cards, at most %u fit", node->cards_count, GPUSIM_CARDS);
	return 0;
}

static void lay_out(struct gpusim_node *node)
{
	pthread_mutexattr_t attributes;
	struct timespec now;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&node->mutex, &attributes);
	pthread_mutexattr_destroy(&attributes);
	clock_gettime(CLOCK_REALTIME, &now);
	node->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	node->driver_loads = 1;
	node->layout = GPUSIM_LAYOUT;
	node->bytes = sizeof(*node);
	atomic_store(&node->clock_speed_milli, 1000u);
	atomic_store(&node->generation, 1u);
}

static int write_node(int descriptor, const char *lines)
{
	/* Any user of a container uses the cards, so any user may write. */
	if (fchmod(descriptor, 0666) != 0 || ftruncate(descriptor, sizeof(struct gpusim_node)) != 0)
		return fail(errno, "%m");
	void *address = mmap(NULL, sizeof(struct gpusim_node), PROT_READ | PROT_WRITE, MAP_SHARED,
			     descriptor, 0);
	if (address == MAP_FAILED)
		return fail(errno, "%m");
	struct gpusim_node *node = address;
	lay_out(node);
	node->host_pid_namespace = gpusim_current_pid_namespace();
	int result = assign_lines(node, lines);
	node->magic = GPUSIM_MAGIC;
	munmap(node, sizeof(*node));
	return result;
}

int gpusim_create(const char *path, const char *lines)
{
	char fresh[4096];
	int length = snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path);

	if (length < 0 || (size_t)length >= sizeof(fresh))
		return fail(ENAMETOOLONG, "the path is too long");
	int descriptor = mkostemp(fresh, O_CLOEXEC);
	if (descriptor < 0)
		return fail(errno, "cannot create %s: %m", fresh);
	int result = write_node(descriptor, lines);
	close(descriptor);
	if (result == 0 && rename(fresh, path) != 0)
		result = fail(errno, "cannot put the node at %s: %m", path);
	if (result != 0)
		unlink(fresh);
	return result;
}

static struct gpusim_node *open_node(const char *path, int *result)
{
	struct gpusim_node *node = gpusim_map_path(path);

	*result = 0;
	if (!node && errno == EINVAL)
		*result = fail(EINVAL, "%s is no simulated node of this version", path);
	else if (!node)
		*result = fail(errno, "cannot open %s: %m", path);
	return node;
}

/* Try the lines on a copy first, so that a wrong line changes nothing. */
static int check_lines(const struct gpusim_node *node, const char *lines)
{
	struct gpusim_node *copy = aligned_alloc(_Alignof(struct gpusim_node), sizeof(*copy));

	if (!copy)
		return fail(ENOMEM, "out of memory");
	memcpy(copy, node, offsetof(struct gpusim_node, processes));
	int result = assign_lines(copy, lines);
	free(copy);
	return result;
}

int gpusim_set(const char *path, const char *lines)
{
	int result;
	struct gpusim_node *node = open_node(path, &result);

	if (!node)
		return result;
	gpusim_lock(node);
	result = check_lines(node, lines);
	if (result == 0)
		result = assign_lines(node, lines);
	if (result == 0) {
		forget_limits(node);
		atomic_fetch_add(&node->generation, 1u);
		gpusim_announce(node);
	}
	gpusim_unlock(node);
	gpusim_unmap(node);
	return result;
}

int gpusim_xid(const char *path, uint32_t card, uint32_t instance, uint64_t xid)
{
	int result;
	struct gpusim_node *node = open_node(path, &result);

	if (!node)
		return result;
	gpusim_lock(node);
	if (card >= node->cards_count)
		result = fail(ENODEV, "no card %u; the node has %u", card, node->cards_count);
	else if (instance == GPUSIM_NO_INSTANCE)
		gpusim_post_event(node, card, NULL, EVENT_XID, xid);
	else if (instance < GPUSIM_INSTANCES && gpusim_is_mig_device(&node->cards[card], instance))
		gpusim_post_event(node, card, &node->cards[card].instances[instance], EVENT_XID,
				  xid);
	else
		result = fail(ENODEV, "card %u has no MIG instance %u", card, instance);
	gpusim_unlock(node);
	gpusim_unmap(node);
	return result;
}

int gpusim_describe(const char *path, char *lines, size_t bytes)
{
	int result;
	struct gpusim_node *node = open_node(path, &result);

	if (!node)
		return result;
	gpusim_lock(node);
	if (!gpusim_write_lines(node, lines, bytes))
		result = fail(ENOSPC, "the description needs more than %zu bytes", bytes);
	gpusim_unlock(node);
	gpusim_unmap(node);
	return result;
}

uint64_t gpusim_generation(void)
{
	char path[4096];
	struct gpusim_node *node =
		gpusim_state_path(path, sizeof(path)) ? gpusim_map_path(path) : NULL;
	uint64_t generation = 0;

	if (node) {
		generation = node->created_ns + atomic_load(&node->generation);
		gpusim_unmap(node);
	}
	return generation;
}

static int occupy(struct gpusim_node *node, uint32_t card, uint32_t gpu_instance, uint64_t bytes)
{
	uint32_t compute_instance = gpu_instance == GPUSIM_NO_INSTANCE ? GPUSIM_NO_INSTANCE : 0;
	struct gpusim_process *process = gpusim_process_claim(
		node, card, gpu_instance, compute_instance, GPUSIM_PROCESS_COMPUTE);

	if (!process)
		return fail(ENOSPC, "the node has no room for another process");
	uint64_t others = gpusim_card_used_bytes(node, card) - process->used_bytes;
	uint64_t total = node->cards[card].memory_total_bytes;
	if (others > total || bytes > total - others)
		return fail(ENOMEM, "card %u has %" PRIu64 " bytes free, not %" PRIu64, card,
			    others > total ? 0 : total - others, bytes);
	process->used_bytes = bytes;
	return 0;
}

int gpusim_occupy(const char *path, uint32_t card, uint32_t gpu_instance, uint64_t bytes)
{
	int result;
	struct gpusim_node *node = open_node(path, &result);

	if (!node)
		return result;
	/* Stays mapped: the process's slot lives as long as the file is open. */
	if (card >= node->cards_count)
		return fail(ENODEV, "no card %u; the node has %u", card, node->cards_count);
	gpusim_lock(node);
	result = occupy(node, card, gpu_instance, bytes);
	gpusim_unlock(node);
	return result;
}

int gpusim_hold_lock(const char *path)
{
	int result;
	struct gpusim_node *node = open_node(path, &result);

	if (node)
		gpusim_lock(node);
	return result;
}
