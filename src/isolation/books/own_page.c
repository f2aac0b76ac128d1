/* Our own page is mapped, those of neighbours never (compute/neighbours.c). */
#include "books/own_page.h"

#include "books/slice_region.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct activity *_Atomic own[LIMITS_CARDS];

int activity_directory(int card, char *path, size_t bytes)
{
	return snprintf(path, bytes, "%s/cards/%s", slice_root(), slice_limits()->cards[card].uuid);
}

/* Our own file may be mapped: only this container can cut it off. */
static struct activity *map_own(int card)
{
	char path[400];
	struct stat status;
	const int length = activity_directory(card, path, sizeof(path));

	(void)snprintf(path + length, sizeof(path) - (size_t)length, "/%s", slice_limits()->slice);
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
