/*
 * Locks of the open file, not of the process: they live until the descriptor is
 * closed, which exec and death do. With the region's lock held, so that no two
 * threads come here at once.
 */
#include "presence.h"

#include "region.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#ifndef F_OFD_SETLK /* Linux 3.15; older kernels refuse it */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static char file[320];
static int held_fd = -1;

void presence_use(const char *path)
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

bool presence_hold(unsigned slot)
{
	struct flock lock = lock_of(slot, F_WRLCK);

	if (held_fd < 0)
		held_fd = open(file, O_RDWR | O_CLOEXEC | O_NOCTTY);
	return held_fd >= 0 && fcntl(held_fd, F_OFD_SETLK, &lock) == 0;
}

bool presence_is_held(unsigned slot)
{
	struct flock lock = lock_of(slot, F_WRLCK);
	const int fd = open(file, O_RDWR | O_CLOEXEC | O_NOCTTY);

	if (fd < 0)
		return true;
	const bool is_free = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;

	close(fd);
	return !is_free;
}

void presence_after_fork(void)
{
	if (held_fd >= 0)
		close(held_fd);
	held_fd = -1;
}
