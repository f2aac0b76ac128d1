/* The kernels of a cubin, an ELF file whose function symbols are marked as entries; its variables.
 */
#include "image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

/* Facts of NVIDIA's compilers' output. */
enum { MACHINE_CUDA = 190, IS_ENTRY = 0x10, SIZED_ATTRIBUTE = 4, PARAMETER = 0x17 };

struct cubin {
	const unsigned char *bytes;
	const Elf64_Ehdr *header;
	const Elf64_Shdr *sections;
	const char *section_names;
};

struct attribute {
	uint8_t form, what;
	uint16_t bytes; /* behind it, if the form is SIZED_ATTRIBUTE */
};

struct parameter_info {
	uint32_t index;
	uint16_t ordinal, offset;
	uint32_t word; /* its upper 14 bits are the size */
};

/* Section .nv.info.KERNEL: attributes, one after another. */
static bool read_parameters(struct image_kernel *kernel, const unsigned char *at,
			    const unsigned char *end)
{
	while (at + sizeof(struct attribute) <= end) {
		struct attribute attribute;
		struct parameter_info info;

		memcpy(&attribute, at, sizeof(attribute));
		at += sizeof(attribute);
		if (attribute.form != SIZED_ATTRIBUTE)
			continue;
		if (attribute.what == PARAMETER && attribute.bytes == sizeof(info) &&
		    at + sizeof(info) <= end) {
			memcpy(&info, at, sizeof(info));
			if (!image_add_parameter(
				    kernel, info.ordinal,
				    (struct image_parameter){info.offset, info.word >> 18}))
				return false;
		}
		at += attribute.bytes;
	}
	return true;
}

static bool find_parameters(const struct cubin *cubin, struct image_kernel *kernel)
{
	static const char prefix[] = ".nv.info.";

	for (unsigned i = 0; i < cubin->header->e_shnum; i++) {
		const Elf64_Shdr *section = &cubin->sections[i];
		const char *name = cubin->section_names + section->sh_name;

		if (strncmp(name, prefix, sizeof(prefix) - 1) == 0 &&
		    strcmp(name + sizeof(prefix) - 1, kernel->name) == 0)
			return read_parameters(kernel, cubin->bytes + section->sh_offset,
					       cubin->bytes + section->sh_offset +
						       section->sh_size);
	}
	return true;
}

static CUresult read_symbols(const struct cubin *cubin, const Elf64_Shdr *table,
			     struct image *image)
{
	const char *names = (const char *)cubin->bytes + cubin->sections[table->sh_link].sh_offset;

	for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
		struct image_kernel *kernel;
		Elf64_Sym symbol;

		memcpy(&symbol, cubin->bytes + table->sh_offset + at, sizeof(symbol));
		const char *name = names + symbol.st_name;

		if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_shndx != SHN_UNDEF &&
		    !image_add_variable(image, name, strlen(name), symbol.st_size))
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & IS_ENTRY))
			continue;
		kernel = image_add(image, name, strlen(name));
		if (!kernel || !find_parameters(cubin, kernel))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* The header may lie anywhere; what the compilers write behind it is aligned to it or copied. */
CUresult image_read_cubin(struct image *image, const unsigned char *bytes)
{
	Elf64_Ehdr header;
	struct cubin cubin = {.bytes = bytes, .header = &header};
	Elf64_Shdr *sections;
	CUresult result = CUDA_SUCCESS;

	memcpy(&header, bytes, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != MACHINE_CUDA ||
	    header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shstrndx >= header.e_shnum)
		return CUDA_ERROR_INVALID_IMAGE;
	sections = malloc(header.e_shnum * sizeof(*sections));
	if (!sections)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(sections, bytes + header.e_shoff, header.e_shnum * sizeof(*sections));
	cubin.sections = sections;
	cubin.section_names = (const char *)bytes + sections[header.e_shstrndx].sh_offset;
	for (unsigned i = 0; i < header.e_shnum && result == CUDA_SUCCESS; i++) {
		if (sections[i].sh_type == SHT_SYMTAB && sections[i].sh_link < header.e_shnum)
			result = read_symbols(&cubin, &sections[i], image);
	}
	free(sections);
	return result;
}
