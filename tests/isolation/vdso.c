/*
 * Asks what the vDSO is where it is linked as gVisor's and user-mode Linux' are, at an address that only
 * a kernel has: this kernel's own is shown so.
 */
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/auxv.h>

#include "driver/libc_symbols.h"

#define LINKED ((ElfW(Addr))0xffffffffff700000)

int main(void)
{
	const uintptr_t base = getauxval(AT_SYSINFO_EHDR);
	const ElfW(Ehdr) *file = (const void *)base;
	const ElfW(Phdr) *part = (const void *)(base + file->e_phoff);
	ElfW(Dyn) entries[64] = {0};
	const struct link_map map = {.l_addr = base - LINKED, .l_name = "", .l_ld = entries};

	while (part->p_type != PT_DYNAMIC)
		part++;
	for (size_t i = 0; i < part->p_memsz / sizeof(*entries); i++) {
		entries[i] = ((const ElfW(Dyn) *)(base + part->p_vaddr))[i];
		if (entries[i].d_tag == DT_STRTAB)
			entries[i].d_un.d_ptr += LINKED;
	}
	printf("C library %d, driver %d\n", object_is_c_library(&map), object_is_driver(&map));
	return 0;
}
