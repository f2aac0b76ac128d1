/*
 * A library loaded with RTLD_DEEPBIND, and what it brings with it, looks for dlsym and
 * dlopen among its own dependencies first, finds the C library's, and then the driver
 * without us. Plugins that load their own version of something need the flag, so it is
 * taken only from those that may mean CUDA.
 *
 * A library that uses CUDA has the name of the driver or of its runtime somewhere in the file: as
 * what it needs, or, with the runtime linked into it, as what that loads.
 */
#include "hook/deepbind.h"

#include "driver/libc_symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct image {
	const char *bytes;
	size_t size;
};

static bool is_inside(const struct image *image, uint64_t offset, uint64_t bytes)
{
	return offset <= image->size && bytes <= image->size - offset;
}

static bool names(const struct image *image, const char *word)
{
	return memmem(image->bytes, image->size, word, strlen(word)) != NULL;
}

/* Libraries that are there keep the order in which they look; nor do the compilers' use CUDA. */
static bool brings_nothing(const char *needed)
{
	static const char *const compilers[] = {"libc.so.",     "libm.so.",  "libdl.so.",
						"libpthread.",  "librt.so.", "libstdc++.so.",
						"libgcc_s.so.", "ld-linux"};

	for (size_t i = 0; i < sizeof(compilers) / sizeof(compilers[0]); i++)
		if (strncmp(needed, compilers[i], strlen(compilers[i])) == 0)
			return true;
	void *loaded = libc_symbols()->dlopen(needed, RTLD_LAZY | RTLD_NOLOAD);

	if (loaded)
		dlclose(loaded);
	return loaded;
}

/* Where an address of the image lies in the file; its end when that cannot be told. */
static uint64_t offset_of(const struct image *image, const ElfW(Phdr) * parts, unsigned count,
			  uint64_t address)
{
	for (unsigned i = 0; i < count; i++)
		if (parts[i].p_type == PT_LOAD && address >= parts[i].p_vaddr &&
		    address - parts[i].p_vaddr < parts[i].p_filesz)
			return address - parts[i].p_vaddr + parts[i].p_offset;
	return image->size;
}

/* Its table of what it needs, and where the names are; false when it cannot be understood. */
static bool find_dynamic(const struct image *image, const ElfW(Dyn) * *entries, size_t *count,
			 uint64_t *strings)
{
	const ElfW(Ehdr) *header = (const void *)image->bytes;

	*count = 0;
	if (image->size < sizeof(*header) || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
	    header->e_phoff % _Alignof(ElfW(Phdr)) != 0 ||
	    !is_inside(image, header->e_phoff, header->e_phnum * sizeof(ElfW(Phdr))))
		return false;
	const ElfW(Phdr) *parts = (const void *)(image->bytes + header->e_phoff);

	for (unsigned i = 0; i < header->e_phnum; i++) {
		if (parts[i].p_type != PT_DYNAMIC || parts[i].p_offset % _Alignof(ElfW(Dyn)) != 0 ||
		    !is_inside(image, parts[i].p_offset, parts[i].p_filesz))
			continue;
		*entries = (const void *)(image->bytes + parts[i].p_offset);
		*count = parts[i].p_filesz / sizeof(**entries);
	}
	for (size_t i = 0; i < *count && (*entries)[i].d_tag != DT_NULL; i++)
		if ((*entries)[i].d_tag == DT_STRTAB) {
			*strings =
				offset_of(image, parts, header->e_phnum, (*entries)[i].d_un.d_ptr);
			return true;
		}
	return false;
}

static bool is_harmless(const struct image *image)
{
	const ElfW(Dyn) * entries;
	uint64_t strings;
	size_t count;

	if (names(image, "libcuda") || names(image, "libnvidia") ||
	    !find_dynamic(image, &entries, &count, &strings))
		return false;
	for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++) {
		const uint64_t place = strings + entries[i].d_un.d_val;

		if (entries[i].d_tag != DT_NEEDED)
			continue;
		if (place >= image->size || !memchr(image->bytes + place, 0, image->size - place) ||
		    !brings_nothing(image->bytes + place))
			return false;
	}
	return true;
}

bool deepbind_is_harmless(const char *file)
{
	struct stat status;

	/* By a name alone the loader searches, and where it finds it is its own affair. */
	if (!file || !strchr(file, '/'))
		return false;
	const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct image image = {0};

	if (fd < 0)
		return false;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
		void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

		if (bytes != MAP_FAILED)
			image = (struct image){.bytes = bytes, .size = (size_t)status.st_size};
	}
	close(fd);
	if (!image.bytes)
		return false;
	const bool answer = is_harmless(&image);

	munmap((void *)(uintptr_t)image.bytes, image.size);
	return answer;
}
