/*
 * A library that a pod names in LD_PRELOAD, in front of ours, with a dlsym and
 * a cuMemAlloc of its own. It finds the C library's dlsym by version, as the
 * next one; with FRONT=tables in the loaded objects' tables, as overlays of
 * games do.
 */
#include <cuda.h>

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

static void *(*look)(void *, const char *);

/* Any version; the table of symbols ends where that of their names begins. */
static int search(struct dl_phdr_info *info, size_t size, void *unused)
{
	const ElfW(Sym) *symbol = NULL;
	const char *names = NULL;
	const ElfW(Dyn) *entry = NULL;

	(void)size, (void)unused;
	if (!strstr(info->dlpi_name, "libc.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			symbol = (const ElfW(Sym) *)entry->d_un.d_ptr;
		if (entry->d_tag == DT_STRTAB)
			names = (const char *)entry->d_un.d_ptr;
	}
	for (; symbol && (const char *)symbol < names; symbol++)
		if (symbol->st_value && !strcmp(names + symbol->st_name, "dlsym"))
			*(void **)&look = (void *)(info->dlpi_addr + symbol->st_value);
	return 1;
}

static void *next(void *handle, const char *name)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	const char *front = getenv("FRONT");

	if (!look && front && !strcmp(front, "tables"))
		dl_iterate_phdr(search, NULL);
	for (size_t i = 0; !look && i < sizeof(versions) / sizeof(versions[0]); i++)
		*(void **)&look = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	return look ? look(handle, name) : NULL;
}

void *dlsym(void *handle, const char *name)
{
	return next(handle, name);
}

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes)
{
	CUresult (*real)(CUdeviceptr *, size_t) = NULL;

	*(void **)&real = next(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
	return real ? real(pointer, bytes) : CUDA_ERROR_NOT_FOUND;
}
