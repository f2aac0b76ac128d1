/* Mapping and laying out the shared region, and its slots. */
#include "books/region.h"

#include "slice/killpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * Whether the file holds zeros only. By pread and not in the mapping: the agent has allocated no
 * more of the file than this slice uses, and touching the rest of the mapping would kill the
 * process where the file system is full.
 */
static bool is_blank(int fd)
{
	static const char zeros[4096];
	char block[sizeof(zeros)];

	for (off_t at = 0; at < REGION_BYTES; at += (off_t)sizeof(block))
		if (pread(fd, block, sizeof(block), at) != (ssize_t)sizeof(block) ||
		    memcmp(block, zeros, sizeof(block)) != 0)
			return false;
	return true;
}

/* The file itself; the bytes behind it are books/region_lock.c's. */
static struct flock layout_lock(short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_len = REGION_BYTES};
}

/* Against other processes that lay it out; the kernel releases it with this process. */
static bool lock_file(int fd)
{
	const struct timespec pause = {.tv_nsec = 2000000};

	for (int attempt = 0; attempt < 1000; attempt++) {
		struct flock lock = layout_lock(F_WRLCK);

		if (fcntl(fd, F_SETLK, &lock) == 0)
			return true;
		if (errno != EACCES && errno != EAGAIN && errno != EINTR)
			return false;
		(void)nanosleep(&pause, NULL);
	}
	return false;
}

static bool lay_out(struct region *region, const struct limits *limits)
{
	/* Before the first byte: a region that is only begun may be laid out again. */
	atomic_store(&region->state, REGION_BEGUN);
	KILLPOINT(layout_begun);
	region->layout = REGION_LAYOUT;
	region->bytes = REGION_BYTES;
	region->slot_count = REGION_SLOTS;
	region->card_count = limits->card_count;
	memcpy(region->slice, limits->slice, sizeof(region->slice));
	for (unsigned i = 0; i < limits->card_count; i++) {
		struct region_card *card = &region->cards[i];

		memcpy(card->uuid, limits->cards[i].uuid, sizeof(card->uuid));
		card->limit_bytes = limits->cards[i].memory_bytes;
		card->core_percent = limits->cards[i].core_percent;
	}
	if (!region_make_lock(&region->lock))
		return false;
	KILLPOINT(layout_mutex);
	region->magic = REGION_MAGIC;
	atomic_store(&region->state, REGION_READY);
	return true;
}

static const char *judge(const struct region *region, const struct limits *limits)
{
	if (region->magic != REGION_MAGIC)
		return "it is corrupt";
	if (region->layout != REGION_LAYOUT || region->bytes != REGION_BYTES ||
	    region->slot_count != REGION_SLOTS)
		return "it has another layout";
	if (region->card_count != limits->card_count ||
	    strncmp(region->slice, limits->slice, sizeof(region->slice)) != 0)
		return "it belongs to another slice";
	for (unsigned i = 0; i < limits->card_count; i++)
		if (strncmp(region->cards[i].uuid, limits->cards[i].uuid, LIMITS_UUID_BYTES) != 0)
			return "it belongs to other cards";
	if (region->slots_seen > REGION_SLOTS || !region_has_lock(region))
		return "it is corrupt";
	return NULL;
}

/*
 * A region in use is never laid out again: only a blank one is, or one whose maker died before it
 * was ready.
 */
static const char *make_ready(struct region *region, int fd, const struct limits *limits)
{
	if (atomic_load(&region->state) != REGION_READY) {
		if (!lock_file(fd))
			return "its file lock cannot be had";
		const uint32_t state = atomic_load(&region->state);
		const bool is_ours =
			state == REGION_BEGUN || (state == REGION_VIRGIN && is_blank(fd));
		const bool is_done = state == REGION_READY || (is_ours && lay_out(region, limits));
		struct flock lock = layout_lock(F_UNLCK);

		fcntl(fd, F_SETLK, &lock);
		if (!is_done)
			return is_ours ? "its lock cannot be made" : "it is corrupt";
	}
	return judge(region, limits);
}

static int open_file(const char *path, bool may_create)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);

	if (fd < 0 && errno == ENOENT && may_create) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
		/* The mask is the application's; the mode is the library's. */
		if (fd >= 0 && (fchmod(fd, 0666) != 0 && errno != EPERM)) {
			close(fd);
			fd = -1;
		}
	}
	return fd;
}

/* Grown files are accepted, short ones are not: a mapping past the end kills. */
static bool has_size(int fd, bool may_create)
{
	struct stat status;

	if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
		return false;
	if (status.st_size == 0 && may_create)
		return ftruncate(fd, REGION_BYTES) == 0;
	return status.st_size >= REGION_BYTES;
}

struct region *region_open(const char *path, const struct limits *limits, bool may_create,
			   char *reason, size_t reason_bytes)
{
	const int fd = open_file(path, may_create);
	const char *fault = NULL;
	struct region *region = MAP_FAILED;

	slot_lock_use(path);
	if (fd < 0) {
		(void)snprintf(reason, reason_bytes, "%s: %m", path);
		return NULL;
	}
	if (!has_size(fd, may_create))
		fault = "it is not a file of 1 MiB";
	else
		region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (!fault && region == MAP_FAILED)
		fault = "it cannot be mapped";
	if (!fault)
		fault = make_ready(region, fd, limits);
	close(fd);
	if (fault) {
		(void)snprintf(reason, reason_bytes, "%s: %s", path, fault);
		if (region != MAP_FAILED)
			munmap(region, REGION_BYTES);
		return NULL;
	}
	return region;
}

static bool is_me(const struct region_slot *slot)
{
	const struct process_name *self = process_self();

	return slot->owner.pid == self->pid && slot->owner.start_ticks == self->start_ticks &&
	       slot->owner.pid_namespace == self->pid_namespace;
}

static int find_slot(const struct region *region, bool mine)
{
	for (unsigned i = 0; i < REGION_SLOTS; i++) {
		const struct region_slot *slot = &region->slots[i];

		if (mine ? slot->state == SLOT_USED && is_me(slot) : slot->state == SLOT_FREE)
			return (int)i;
	}
	return -1;
}

int region_claim(struct region *region)
{
	/* Before an exec this process may have held one: what it held went with the image. */
	int index = find_slot(region, true);

	if (index < 0)
		index = find_slot(region, false);
	if (index < 0 && region_reap(region))
		index = find_slot(region, false);
	if (index < 0)
		return -1;
	struct region_slot *slot = &region->slots[index];

	region_clear(region, (unsigned)index);
	slot->owner = *process_self();
	slot->generation++;
	slot->has_slot_lock = slot_lock_hold((unsigned)index);
	KILLPOINT(claim_before_state);
	slot->state = SLOT_USED;
	if (region->slots_seen <= (uint32_t)index)
		region->slots_seen = (uint32_t)index + 1;
	KILLPOINT(claim_after_state);
	return index;
}

uint64_t region_held(const struct region *region, unsigned card)
{
	const struct region_card *column = &region->cards[card];
	uint64_t held = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		if (__builtin_add_overflow(held, column->used_bytes[i], &held) ||
		    __builtin_add_overflow(held, column->overhead_bytes[i], &held))
			return UINT64_MAX;
	}
	return held;
}
