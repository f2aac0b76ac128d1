/*
 * How large the images are that were loaded: code is no larger than that by much. A compressed
 * fat binary grows to four times its size; loaded code takes whole pages. Variables and local
 * memory, which no image's size tells, are not in it.
 */
#include "unasked/images.h"

#include "books/holdings.h"

#include <elf.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

enum { GROWTH = 4 };

#define PAGE_BYTES (2ull * 1024 * 1024)
#define FAT_BINARY "\x50\xed\x55\xba"
#define FAT_BINARY_WRAPPER "\xb1\x43\x62\x46"

/* In front of a fat binary, and what the compiler puts into programs: a pointer to one. */
struct fat_binary {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes;
};
struct fat_binary_wrapper {
	uint32_t magic, version;
	const void *image;
};

static _Atomic uint64_t most_code;

/* Its section headers stand at the end. */
static uint64_t elf_bytes(const void *image)
{
	Elf64_Ehdr header;

	memcpy(&header, image, sizeof(header));
	return header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
}

static uint64_t fat_binary_bytes(const void *image)
{
	struct fat_binary header;

	memcpy(&header, image, sizeof(header));
	return header.header_bytes + header.bytes;
}

/* It may be a text shorter than that. */
static bool begins_with(const void *image, const char *magic)
{
	return strncmp(image, magic, 4) == 0;
}

uint64_t image_bytes(const void *image)
{
	struct fat_binary_wrapper wrapper;

	if (!image)
		return 0;
	if (begins_with(image, FAT_BINARY_WRAPPER)) {
		memcpy(&wrapper, image, sizeof(wrapper));
		return image_bytes(wrapper.image);
	}
	if (begins_with(image, FAT_BINARY))
		return fat_binary_bytes(image);
	if (begins_with(image, ELFMAG))
		return elf_bytes(image);
	return strlen(image); /* PTX */
}

uint64_t image_file_bytes(const char *path)
{
	struct stat status;

	return path && stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
}

void images_loaded(const void *handle, uint64_t bytes, CUcontext home)
{
	const struct holding entry = {.key = (uint64_t)(uintptr_t)handle,
				      .kind = KIND_IMAGE,
				      .context = (uint64_t)(uintptr_t)home,
				      .bytes = PAGE_BYTES + bytes * GROWTH};

	if (holdings_put(&entry))
		atomic_fetch_add(&most_code, entry.bytes);
}

void images_unloaded(const void *handle)
{
	struct holding entry;

	if (holdings_take(KIND_IMAGE, (uint64_t)(uintptr_t)handle, &entry))
		atomic_fetch_sub(&most_code, entry.bytes);
}

void images_forget_context(CUcontext context)
{
	struct holding gone;
	uint32_t place = 0;

	while (holdings_take_of(KIND_IMAGE, (uint64_t)(uintptr_t)context, &place, &gone))
		atomic_fetch_sub(&most_code, gone.bytes);
}

uint64_t images_most_code(void)
{
	return atomic_load(&most_code);
}

void images_after_fork(void)
{
	atomic_store(&most_code, 0);
}
