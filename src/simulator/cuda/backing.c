/* The host memory behind device memory: one sparse file without a name. */
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int file = -1;
static uint64_t next_offset;

int backing_file(void)
{
	if (file < 0)
		file = (int)syscall(SYS_memfd_create, "gpusim", 1u /* MFD_CLOEXEC */);
	return file;
}

/* Offsets are never used twice: the file is as long as all there ever was, and holds only what was
 * written. */
bool backing_reserve(uint64_t bytes, uint64_t *offset)
{
	if (backing_file() < 0 || ftruncate(file, (off_t)(next_offset + bytes)) != 0)
		return false;
	*offset = next_offset;
	next_offset += bytes;
	return true;
}

/*
 * Pieces of the commonest size are kept for the next who wants one, as they
 * are: device memory is not cleared either.
 */
enum { KEPT = 64 };

static struct piece {
	void *address;
	uint64_t offset;
} kept[KEPT];
static unsigned kept_count;

/* Memory of the card lies in whole pages of its own: at multiples of a block. */
static void *map_aligned(uint64_t bytes, uint64_t offset)
{
	const uint64_t span = bytes + MEMORY_BLOCK_BYTES;
	char *there =
		mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (there == MAP_FAILED)
		return MAP_FAILED;
	const uint64_t before =
		(MEMORY_BLOCK_BYTES - (uint64_t)(uintptr_t)there % MEMORY_BLOCK_BYTES) %
		MEMORY_BLOCK_BYTES;
	void *address = mmap(there + before, bytes, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, (off_t)offset);

	if (address == MAP_FAILED) {
		munmap(there, span);
		return MAP_FAILED;
	}
	if (before)
		munmap(there, before);
	munmap(there + before + bytes, MEMORY_BLOCK_BYTES - before);
	return address;
}

void *backing_map(uint64_t bytes, uint64_t *offset)
{
	void *address;

	if (bytes == MEMORY_BLOCK_BYTES && kept_count > 0) {
		*offset = kept[--kept_count].offset;
		return kept[kept_count].address;
	}
	if (!backing_reserve(bytes, offset))
		return NULL;
	address = map_aligned(bytes, *offset);
	return address == MAP_FAILED ? NULL : address;
}

void backing_unmap(void *address, uint64_t bytes, uint64_t offset)
{
	if (bytes == MEMORY_BLOCK_BYTES && kept_count < KEPT) {
		kept[kept_count++] = (struct piece){address, offset};
		return;
	}
	madvise(address, bytes, MADV_REMOVE);
	munmap(address, bytes);
}
