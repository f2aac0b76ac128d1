/* Mapping the slice's region and pages once a process, and claiming a slot once an image. */
#include "books/slice_region.h"

#include "slice/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct region *_Atomic region;
static _Atomic int slot = -1;

/* Another thread of the parent may have been opening it; what was opened stands, not the slot. */
static void region_in_child(void)
{
	opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	atomic_store(&slot, -1);
}

static struct region *open_here(void)
{
	char path[300], reason[600];

	if (!slice_is_of_agent()) {
		(void)snprintf(path, sizeof(path), "%s/state", slice_root());
		mkdir(path, 0777); /* a failure shows at the region */
	}
	(void)snprintf(path, sizeof(path), "%s/state/region", slice_root());
	struct region *opened =
		region_open(path, slice_limits(), !slice_is_of_agent(), reason, sizeof(reason));

	if (!opened)
		slice_close("%s", reason);
	return opened;
}

bool slice_open_region(void)
{
	if (!atomic_load_explicit(&region, memory_order_acquire)) {
		const int saved = errno;

		process_in_children(region_in_child);
		pthread_mutex_lock(&opening);
		if (!atomic_load(&region) && slice_state() == SLICE_OPEN) {
			atomic_store(&region, open_here());
			/* Of newer ones nobody could tell a process without a region. */
			slice_take_newer();
		}
		pthread_mutex_unlock(&opening);
		errno = saved;
	}
	return atomic_load_explicit(&region, memory_order_relaxed);
}

struct region *slice_region(void)
{
	return atomic_load_explicit(&region, memory_order_relaxed);
}

bool slice_follow_limits(void)
{
	const struct region *here = slice_region();

	return !here ||
	       slice_follow(atomic_load_explicit(&here->limits_revision, memory_order_relaxed));
}

int slice_slot_locked(void)
{
	int mine = atomic_load_explicit(&slot, memory_order_acquire);

	if (mine < 0) {
		mine = region_claim(slice_region());
		atomic_store_explicit(&slot, mine, memory_order_release);
	}
	return mine;
}

int slice_slot(void)
{
	const int mine = atomic_load_explicit(&slot, memory_order_acquire);

	if (mine >= 0)
		return mine;
	if (!region_lock(slice_region())) {
		slice_close("the lock of the shared region is beyond repair");
		return -1;
	}
	const int claimed = slice_slot_locked();

	region_unlock(slice_region());
	return claimed;
}

/* Mapped, as those of neighbours never are (compute/lease.c). */
static struct activity *_Atomic own[LIMITS_CARDS];

/* Where the slices of a card have their pages. */
static void name_directory(int card, char *path, size_t bytes)
{
	(void)snprintf(path, bytes, "%s/cards/%s", slice_root(), slice_limits()->cards[card].uuid);
}

void activity_each_neighbour(int card, void (*found)(int fd, void *argument), void *argument)
{
	char path[400];

	name_directory(card, path, sizeof(path));
	DIR *directory = opendir(path);

	const struct dirent *entry;

	/* Nobody else has the stream: NOLINTNEXTLINE(concurrency-mt-unsafe) */
	while (directory && (entry = readdir(directory))) {
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, slice_limits()->slice) == 0)
			continue;
		const int fd = openat(dirfd(directory), entry->d_name,
				      O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

		if (fd >= 0)
			found(fd, argument);
	}
	if (directory)
		closedir(directory);
}

/* Our own file may be mapped: only this container can cut it off. */
static struct activity *map_own(int card)
{
	char path[400];
	struct stat status;

	name_directory(card, path, sizeof(path));
	const size_t length = strlen(path);

	(void)snprintf(path + length, sizeof(path) - length, "/%s", slice_limits()->slice);
	const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return NULL;
	void *page = MAP_FAILED;

	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size >= ACTIVITY_BYTES)
		page = mmap(NULL, ACTIVITY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return page == MAP_FAILED ? NULL : page;
}

struct activity *activity_own_page(int card)
{
	if (!own[card])
		own[card] = map_own(card);
	if (!own[card])
		own[card] = (struct activity *)(void *)slice_region()->activity[card];
	return own[card];
}
