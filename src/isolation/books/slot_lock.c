/*
 * Locks of the open file, not of the process. A mapping keeps the open file, and
 * so the lock, until exec or death: a descriptor would be the application's to
 * close, and its number another file's afterwards. With the region's lock held,
 * so that no two threads come here at once.
 */
#include "books/slot_lock.h"

#include "slice/killpoint.h"
#include "slice/process.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_OFD_SETLK /* Linux 3.15; older kernels refuse it */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static char file[320];
static off_t first_byte;

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

void slot_lock_use(const char *path, size_t file_bytes)
{
	first_byte = (off_t)file_bytes;
	(void)snprintf(file, sizeof(file), "%s", path);
}

/* Behind the end of the file, where nothing is ever written. */
static struct flock lock_of(unsigned slot, short type)
{
	return (struct flock){.l_type = type,
			      .l_whence = SEEK_SET,
			      .l_start = first_byte + (off_t)slot,
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

int slot_lock_open(void)
{
	return open(file, O_RDWR | O_CLOEXEC | O_NOCTTY);
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

bool slot_lock_is_held(int fd, unsigned slot)
{
	struct flock lock = lock_of(slot, F_WRLCK);

	return fd < 0 || fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
