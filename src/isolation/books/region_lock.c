/* The lock of the shared region: taken, taken over from the dead, and known for corrupt. */
#include "books/region.h"

#include "slice/killpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

bool region_make_lock(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attributes;

	if (pthread_mutexattr_init(&attributes) != 0)
		return false;
	const bool is_made =
		pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
		pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
		pthread_mutex_init(lock, &attributes) == 0;

	pthread_mutexattr_destroy(&attributes);
	return is_made;
}

/* The word that says shared and robust; never written after it was made. */
bool region_has_lock(const struct region *region)
{
	static _Atomic int known;
	pthread_mutex_t fresh;

	if (!atomic_load_explicit(&known, memory_order_relaxed)) {
		if (!region_make_lock(&fresh))
			return false;
		atomic_store_explicit(&known, fresh.__data.__kind, memory_order_relaxed);
		pthread_mutex_destroy(&fresh);
	}
	return __atomic_load_n(&region->lock.__data.__kind, __ATOMIC_RELAXED) ==
	       atomic_load_explicit(&known, memory_order_relaxed);
}

/*
 * Locks of the open file, not of the process. A mapping keeps the open file, and
 * so the lock, until exec or death: a descriptor would be the application's to
 * close, and its number another file's afterwards. With the region's lock held,
 * so that no two threads come here at once.
 */
#ifndef F_OFD_SETLK /* Linux 3.15; older kernels refuse it */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static char file[320];

/* What a child must not keep of the lock that is just being taken; -1, NULL: nothing. */
static _Atomic int taking_fd = -1;
static void *_Atomic taking_page;

static void slot_lock_in_child(void)
{
	const int fd = atomic_exchange(&taking_fd, -1);
	void *page = atomic_exchange(&taking_page, NULL);

	if (page)
		munmap(page, (size_t)sysconf(_SC_PAGESIZE));
	if (fd >= 0)
		close(fd);
}

void slot_lock_use(const char *path)
{
	(void)snprintf(file, sizeof(file), "%s", path);
}

/* Behind the end of the file, where nothing is ever written. */
static struct flock lock_of(unsigned slot, short type)
{
	return (struct flock){.l_type = type,
			      .l_whence = SEEK_SET,
			      .l_start = REGION_BYTES + (off_t)slot,
			      .l_len = 1};
}

/* A forked child must not have it: the lock ends with the process that took it. */
static bool map_for_good(int fd)
{
	const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);

	if (page == MAP_FAILED)
		return false;
	atomic_store(&taking_page, page);
	KILLPOINT(slot_lock_mapped);
	const bool is_kept = madvise(page, bytes, MADV_DONTFORK) == 0;

	atomic_store(&taking_page, NULL);
	if (!is_kept)
		munmap(page, bytes);
	return is_kept;
}

static int slot_lock_open(void)
{
	return open(file, O_RDWR | O_CLOEXEC | O_NOCTTY);
}

/* Is there a living process that holds this slot? In doubt yes. `fd`: -1, it cannot be opened. */
static bool slot_lock_is_held(int fd, unsigned slot)
{
	struct flock lock = lock_of(slot, F_WRLCK);

	return fd < 0 || fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool slot_lock_hold(unsigned slot)
{
	struct flock lock = lock_of(slot, F_WRLCK);

	process_in_children(slot_lock_in_child);
	const int fd = slot_lock_open();

	if (fd < 0)
		return false;
	atomic_store(&taking_fd, fd);
	const bool is_kept = fcntl(fd, F_OFD_SETLK, &lock) == 0 && map_for_good(fd);

	atomic_store(&taking_fd, -1);
	close(fd);
	/* overlayfs maps another file than the one that was opened. */
	const int other = slot_lock_open();
	const bool is_held = is_kept && slot_lock_is_held(other, slot);

	close(other);
	return is_held;
}

/*
 * False only when its owner is certainly gone. The lock that he holds says it in any pid namespace,
 * and for a tenth of what a look into /proc costs. Without one, pids of another namespace say
 * nothing here.
 */
static bool is_alive_in(const struct region *region, unsigned slot, int locks)
{
	return region->slots[slot].has_slot_lock ? slot_lock_is_held(locks, slot)
						 : process_is_alive(&region->slots[slot].owner);
}

void region_clear(struct region *region, unsigned slot)
{
	for (unsigned i = 0; i < region->card_count && i < LIMITS_CARDS; i++) {
		struct region_card *card = &region->cards[i];
		uint64_t lease = atomic_load(&card->lease);

		if (lease % REGION_SLOTS == slot)
			(void)atomic_compare_exchange_strong(&card->lease, &lease, 0);
		card->used_bytes[slot] = 0;
		card->overhead_bytes[slot] = 0;
		atomic_store(&card->inflight_ns[slot], 0);
		atomic_store(&region->turns[i].had_ns[slot], 0);
		atomic_store(&region->turns[i].want_until_ns[slot], 0);
	}
	/* Nothing of it is out any more. */
	atomic_store(&region->slots[slot].unsettled_bytes, 0);
	region->slots[slot].state = SLOT_FREE;
}

unsigned region_reap(struct region *region)
{
	const int locks = slot_lock_open();
	unsigned reaped = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		if (region->slots[i].state == SLOT_FREE || is_alive_in(region, i, locks))
			continue;
		region_clear(region, i);
		reaped++;
	}
	close(locks);
	if (reaped)
		atomic_fetch_add(&region->reaped_total, reaped);
	return reaped;
}

/*
 * A process holds it for microseconds, and the kernel tells of one that dies with it. The same
 * owner after so many waits means that the word was overwritten, or that the process was stopped
 * there.
 */
static int wait_for_lock(struct region *region)
{
	enum { MOST_WAITS = 5 };
	int before = 0, result = ETIMEDOUT;

	for (int waits = 0; result == ETIMEDOUT && waits < MOST_WAITS; waits++) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		result = pthread_mutex_timedlock(&region->lock, &until);
		const int owner = __atomic_load_n(&region->lock.__data.__lock, __ATOMIC_RELAXED) &
				  FUTEX_TID_MASK;

		waits = owner == before ? waits : 0;
		before = owner;
	}
	return result;
}

bool region_lock(struct region *region)
{
	if (!region_has_lock(region))
		return false;
	int result = pthread_mutex_trylock(&region->lock);

	if (result == EBUSY)
		result = wait_for_lock(region);
	if (result == EOWNERDEAD) {
		/* Every word is whole and totals are sums: only the dead must go. */
		if (pthread_mutex_consistent(&region->lock) != 0)
			return false;
		region_reap(region);
		return true;
	}
	return result == 0;
}

void region_unlock(struct region *region)
{
	pthread_mutex_unlock(&region->lock);
}
