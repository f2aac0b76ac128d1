/*
 * How much of a card loaded images can take. Of a fat binary the card gets the part of one
 * architecture: the largest counts, without compression. Code that is made from PTX counts as four
 * times its text. No image tells of local memory.
 */
#include "overhead/overhead.h"

#include "books/holdings.h"
#include "books/pages.h"
#include "driver/cards.h"
#include "slice/limits.h"

#include <elf.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

/* Of PTX, and of what says nothing of its parts. */
enum { GROWTH = 4, ARCHITECTURES = 64 };

/* Small images share pages. */
#define PIECE_BYTES (64ull * 1024)
#define FAT_BINARY "\x50\xed\x55\xba"
#define FAT_BINARY_WRAPPER "\xb1\x43\x62\x46"
#define VARIABLES ".nv.global"

/* In front of a fat binary, and what the compiler puts into programs: a pointer to one. */
struct fat_binary {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* behind the header */
};
struct fat_binary_wrapper {
	uint32_t magic, version;
	const void *image;
};

/* In front of each part of it; parts of one architecture are linked together. */
enum { FAT_PTX = 1, FAT_CUBIN = 2 };
struct fat_part {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes;
	uint32_t compressed_bytes; /* 0: as it is */
	uint32_t options;
	uint16_t minor, major;
	uint32_t architecture;
	uint8_t name_and_flags[24];
	uint64_t uncompressed_bytes;
};

static _Atomic uint64_t of_modules[LIMITS_CARDS], of_libraries;

/* Variables that begin as zeros take none of its bytes, but of the card. */
static uint64_t variables_bytes(const char *image, const Elf64_Ehdr *header)
{
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(image + header->e_shoff);
	uint64_t bytes = 0;

	if (!header->e_shnum || header->e_shstrndx >= header->e_shnum)
		return 0;
	const char *names = image + sections[header->e_shstrndx].sh_offset;

	for (unsigned i = 0; i < header->e_shnum; i++)
		if (sections[i].sh_type == SHT_NOBITS &&
		    !strncmp(names + sections[i].sh_name, VARIABLES, sizeof(VARIABLES) - 1))
			bytes += sections[i].sh_size;
	return bytes;
}

/* Its section headers stand at the end. */
static uint64_t elf_bytes(const void *image)
{
	Elf64_Ehdr header;

	memcpy(&header, image, sizeof(header));
	return header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize +
	       (header.e_shstrndx ? variables_bytes(image, &header) : 0);
}

static uint64_t part_bytes(const struct fat_part *part, const char *content)
{
	const uint64_t bytes = part->compressed_bytes ? part->uncompressed_bytes : part->bytes;

	if (part->kind == FAT_PTX)
		return bytes * GROWTH;
	return part->compressed_bytes || memcmp(content, ELFMAG, SELFMAG) != 0 ? bytes
									       : elf_bytes(content);
}

/* The largest architecture's; each kind of each has a place. */
static uint64_t fat_binary_bytes(const char *image)
{
	struct {
		uint64_t name, bytes;
	} places[ARCHITECTURES] = {0};
	struct fat_binary header;
	struct fat_part part;
	uint64_t most = 0;

	memcpy(&header, image, sizeof(header));
	for (uint64_t at = 0; at + sizeof(part) <= header.bytes;
	     at += part.header_bytes + part.bytes) {
		const char *there = image + header.header_bytes + at;
		unsigned place = 0;

		memcpy(&part, there, sizeof(part));
		const uint64_t name = 1 + ((uint64_t)part.architecture << 16 | part.kind);

		if (part.header_bytes < sizeof(part))
			return header.bytes * GROWTH;
		while (place < ARCHITECTURES - 1 && places[place].name &&
		       places[place].name != name)
			place++;
		places[place].name = name;
		places[place].bytes += part_bytes(&part, there + part.header_bytes);
		most = places[place].bytes > most ? places[place].bytes : most;
	}
	return most;
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
	return strlen(image) * GROWTH; /* PTX */
}

uint64_t image_file_bytes(const char *path)
{
	struct stat status;

	return path && stat(path, &status) == 0 ? (uint64_t)status.st_size * GROWTH : 0;
}

static _Atomic uint64_t *sum_of(const struct holding *entry)
{
	return entry->card < 0 ? &of_libraries : &of_modules[entry->card];
}

void images_loaded(const void *handle, uint64_t bytes, CUcontext home)
{
	struct holding entry = {.key = (uint64_t)(uintptr_t)handle,
				.kind = KIND_IMAGE,
				.card = CARD_FOREIGN,
				.context = (uint64_t)(uintptr_t)home,
				.bytes = (bytes / PIECE_BYTES + 1) * PIECE_BYTES};
	int card = CARD_FOREIGN;

	if (home && (card_current(&card) != CUDA_SUCCESS || card < 0))
		return;
	entry.card = (int16_t)card;
	if (holdings_put(&entry))
		atomic_fetch_add(sum_of(&entry), entry.bytes);
}

void images_unloaded(const void *handle)
{
	struct holding entry;

	if (holdings_take(KIND_IMAGE, (uint64_t)(uintptr_t)handle, &entry))
		images_gone(&entry);
}

void images_gone(const struct holding *entry)
{
	atomic_fetch_sub(sum_of(entry), entry->bytes);
}

uint64_t images_code(int card, unsigned contexts)
{
	return round_up(atomic_load(&of_modules[card]) + atomic_load(&of_libraries) * contexts,
			PAGE_BYTES);
}

void images_after_fork(void)
{
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		atomic_store(&of_modules[i], 0);
	atomic_store(&of_libraries, 0);
}
