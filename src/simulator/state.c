/* Finding, mapping and locking the node's file. */
#include "state.h"
#include "state_internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define HANG_POLL_MILLISECONDS 100u

#define MAPPINGS 32u

/*
 * The files this process has mapped. One entry a file, because closing a second
 * descriptor of a file would drop the liveness locks that hang on the first;
 * what the driver itself attached is permanent for that reason.
 */
static struct mapping {
	_Atomic(struct gpusim_node *) node; /* NULL: free entry; set last */
	int descriptor;
	dev_t device;
	ino_t inode;
	unsigned references;
	bool permanent;
} mappings[MAPPINGS];

static _Atomic(struct mapping *) attached;
static pthread_mutex_t mappings_mutex = PTHREAD_MUTEX_INITIALIZER;

/* The directory of the library this code was linked into. */
static bool path_beside_library(char *path, size_t bytes)
{
	Dl_info library;

	if (!dladdr((void *)&mappings, &library) || !library.dli_fname)
		return false;
	const char *slash = strrchr(library.dli_fname, '/');
	int directory = slash ? (int)(slash - library.dli_fname) : 1;
	const char *name = slash ? library.dli_fname : ".";
	int length = snprintf(path, bytes, "%.*s/gpu-simulator.state", directory, name);

	return length > 0 && (size_t)length < bytes && access(path, F_OK) == 0;
}

bool gpusim_state_path(char *path, size_t bytes)
{
	const char *named = getenv("GPU_SIMULATOR_STATE"); // NOLINT(concurrency-mt-unsafe)

	if (named && *named) {
		int length = snprintf(path, bytes, "%s", named);
		return length > 0 && (size_t)length < bytes;
	}
	if (path_beside_library(path, bytes))
		return true;
	int length = snprintf(path, bytes, "%s", "/run/gpu-simulator/state");
	return length > 0 && (size_t)length < bytes;
}

/* Map an open file; NULL with errno set when it holds no node of this layout. */
static struct gpusim_node *map_descriptor(int descriptor, const struct stat *status)
{
	if (status->st_size < (off_t)sizeof(struct gpusim_node)) {
		errno = EINVAL;
		return NULL;
	}
	void *address = mmap(NULL, sizeof(struct gpusim_node), PROT_READ | PROT_WRITE, MAP_SHARED,
			     descriptor, 0);
	if (address == MAP_FAILED)
		return NULL;
	struct gpusim_node *node = address;
	if (node->magic != GPUSIM_MAGIC || node->layout != GPUSIM_LAYOUT ||
	    node->bytes != sizeof(*node)) {
		munmap(address, sizeof(*node));
		errno = EINVAL;
		return NULL;
	}
	return node;
}

static struct mapping *find_mapping(const struct stat *status)
{
	for (unsigned i = 0; i < MAPPINGS; i++) {
		struct mapping *mapping = &mappings[i];
		if (mapping->node && mapping->device == status->st_dev &&
		    mapping->inode == status->st_ino)
			return mapping;
	}
	return NULL;
}

static struct mapping *add_mapping(int descriptor, const struct stat *status)
{
	for (unsigned i = 0; i < MAPPINGS; i++) {
		struct mapping *mapping = &mappings[i];
		if (mapping->node)
			continue;
		mapping->descriptor = descriptor;
		mapping->device = status->st_dev;
		mapping->inode = status->st_ino;
		mapping->references = 0;
		mapping->permanent = false;
		mapping->node = map_descriptor(descriptor, status);
		return mapping->node ? mapping : NULL;
	}
	errno = EMFILE;
	return NULL;
}

static struct mapping *open_mapping(const char *path)
{
	struct stat status;

	if (stat(path, &status) != 0)
		return NULL;
	struct mapping *mapping = find_mapping(&status);
	if (mapping)
		return mapping;
	int descriptor = open(path, O_RDWR | O_CLOEXEC);
	if (descriptor < 0)
		return NULL;
	if (fstat(descriptor, &status) == 0)
		mapping = add_mapping(descriptor, &status);
	if (!mapping) {
		int error = errno;
		close(descriptor);
		errno = error;
	}
	return mapping;
}

struct gpusim_node *gpusim_map_path(const char *path)
{
	pthread_mutex_lock(&mappings_mutex);
	struct mapping *mapping = open_mapping(path);
	if (mapping)
		mapping->references++;
	pthread_mutex_unlock(&mappings_mutex);
	return mapping ? mapping->node : NULL;
}

void gpusim_unmap(struct gpusim_node *node)
{
	pthread_mutex_lock(&mappings_mutex);
	for (unsigned i = 0; i < MAPPINGS; i++) {
		struct mapping *mapping = &mappings[i];
		if (!node || mapping->node != node || --mapping->references > 0 ||
		    mapping->permanent)
			continue;
		mapping->node = NULL;
		munmap(node, sizeof(*node));
		close(mapping->descriptor);
	}
	pthread_mutex_unlock(&mappings_mutex);
}

struct gpusim_node *gpusim_attach(bool refresh)
{
	char path[PATH_BYTES];
	struct mapping *mapping = attached;

	/* Without the mutex, which a fork() may have copied in its locked state. */
	if (mapping && !refresh)
		return mapping->node;
	pthread_mutex_lock(&mappings_mutex);
	mapping = gpusim_state_path(path, sizeof(path)) ? open_mapping(path) : NULL;
	if (mapping)
		mapping->permanent = true;
	attached = mapping;
	pthread_mutex_unlock(&mappings_mutex);
	return mapping ? mapping->node : NULL;
}

int gpusim_descriptor(const struct gpusim_node *node)
{
	for (unsigned i = 0; i < MAPPINGS; i++) {
		if (mappings[i].node == node)
			return mappings[i].descriptor;
	}
	return -1;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, unsigned milliseconds)
{
	struct timespec limit = {.tv_sec = milliseconds / 1000u,
				 .tv_nsec = (long)(milliseconds % 1000u) * 1000000L};

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void gpusim_announce(struct gpusim_node *node)
{
	atomic_fetch_add(&node->change, 1u);
	syscall(SYS_futex, &node->change, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	syscall(SYS_futex, &node->hang, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint64_t gpusim_sampling_ns(const struct gpusim_node *node)
{
	const uint64_t stepped_ns = atomic_load(&node->stepped_ns);
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return stepped_ns ? stepped_ns : (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gpusim_await_change(struct gpusim_node *node, uint32_t seen, unsigned milliseconds)
{
	if (atomic_load(&node->change) == seen)
		futex_wait(&node->change, seen, milliseconds);
}

void gpusim_wait_while_hanging(struct gpusim_node *node)
{
	uint32_t hang;

	while ((hang = atomic_load(&node->hang)) != 0)
		futex_wait(&node->hang, hang, HANG_POLL_MILLISECONDS);
}
