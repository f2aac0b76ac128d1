/*
 * A driver library exports what its version has; programs test for a symbol to
 * choose their way. One of our builds has all there ever was. So where a copy of
 * it is put beside a node, the symbols that came after the node's driver are
 * marked as undefined in the copy: dlsym and the linker no longer find them.
 */
#include "control.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct name {
	const char *name;
	unsigned since; /* a driver's branch, or a CUDA version */
};

static const struct name of_nvml[] = {
#define SYMBOL(name, since) {#name, since},
#define UNSUPPORTED(name, since) {#name, since},
#include "nvml/symbols.def"
#undef SYMBOL
#undef UNSUPPORTED
};

static const struct name of_cuda[] = {
#define ENTRY(name, version, null, symbol) {#symbol, version},
#include "cuda/symbols.def"
#undef ENTRY
};

struct versions {
	unsigned branch;
	unsigned cuda;
};

static bool is_later(const struct name *names, size_t count, const char *name, unsigned version)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(names[i].name, name) == 0)
			return names[i].since > version;
	}
	return false;
}

static bool came_later(const char *name, const struct versions *versions)
{
	return is_later(of_nvml, sizeof(of_nvml) / sizeof(of_nvml[0]), name, versions->branch) ||
	       is_later(of_cuda, sizeof(of_cuda) / sizeof(of_cuda[0]), name, versions->cuda);
}

/* In an ELF file as it lies on disk. */
static void hide_later(unsigned char *bytes, const struct versions *versions)
{
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)(void *)bytes;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(void *)(bytes + header->e_shoff);

	for (unsigned i = 0; i < header->e_shnum; i++) {
		const Elf64_Shdr *table = &sections[i];

		if (table->sh_type != SHT_DYNSYM)
			continue;
		Elf64_Sym *symbols = (Elf64_Sym *)(void *)(bytes + table->sh_offset);
		const char *names = (const char *)bytes + sections[table->sh_link].sh_offset;

		for (size_t j = 0; j < table->sh_size / sizeof(*symbols); j++) {
			if (symbols[j].st_shndx == SHN_UNDEF ||
			    !came_later(names + symbols[j].st_name, versions))
				continue;
			symbols[j].st_shndx = SHN_UNDEF;
			symbols[j].st_value = 0;
			/* Where a program is bound to it at its start, it is not there and no
			 * error. */
			symbols[j].st_info =
				ELF64_ST_INFO(STB_WEAK, ELF64_ST_TYPE(symbols[j].st_info));
		}
	}
}

static unsigned char *read_whole(const char *path, size_t *bytes, mode_t *mode)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	void *address = MAP_FAILED;
	struct stat status;

	if (file < 0)
		return NULL;
	if (fstat(file, &status) == 0 && (size_t)status.st_size > sizeof(Elf64_Ehdr)) {
		*bytes = (size_t)status.st_size;
		*mode = status.st_mode & 0777u;
		/* Private: what is changed is not the file. */
		address = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	}
	close(file);
	return address == MAP_FAILED ? NULL : address;
}

static int write_whole(const char *path, const unsigned char *bytes, size_t count, mode_t mode)
{
	char fresh[4096];
	int length = snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path);
	int file = length > 0 && (size_t)length < sizeof(fresh) ? mkostemp(fresh, O_CLOEXEC) : -1;
	size_t written = 0;

	if (file < 0)
		return -EIO;
	while (written < count) {
		ssize_t now = write(file, bytes + written, count - written);

		if (now <= 0)
			break;
		written += (size_t)now;
	}
	if (written < count || fchmod(file, mode) != 0 || close(file) != 0 ||
	    rename(fresh, path) != 0) {
		unlink(fresh);
		return -EIO;
	}
	return 0;
}

int gpusim_put_library(const char *source, const char *target, const char *driver_version,
		       unsigned cuda_version)
{
	const struct versions versions = {(unsigned)strtoul(driver_version, NULL, 10),
					  cuda_version};
	size_t count;
	mode_t mode;
	unsigned char *bytes = read_whole(source, &count, &mode);
	int result;

	if (!bytes)
		return -ENOENT;
	if (memcmp(bytes, ELFMAG, SELFMAG) != 0) {
		munmap(bytes, count);
		return -EINVAL;
	}
	hide_later(bytes, &versions);
	result = write_whole(target, bytes, count, mode);
	munmap(bytes, count);
	return result;
}
