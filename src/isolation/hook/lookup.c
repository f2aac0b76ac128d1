/*
 * dlsym, dlvsym, dlopen and dlmopen, and what they answer: how programs that look
 * the driver up by name meet our hooks. Every name that is not the driver's must be looked
 * up as if we were not here.
 */
#include "driver/driver.h"
#include "driver/libc_symbols.h"
#include "hook/table.h"
#include "slice/slice.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A call of an entry point, as it found its registers; the real function gets what stands here
 * then. */
union word {
	void *pointer;
	const char *text;
	intptr_t number;
};
struct call {
	union word third, second, first;
	const void *caller;
};

/* Returned in two registers: jump there with what `call` holds, or NULL: return `result`. */
struct route {
	void *jump;
	void *result;
};

struct route route_dlsym(struct call *call);
struct route route_dlvsym(struct call *call);
struct route route_dlopen(struct call *call);
struct route route_dlmopen(struct call *call);

static bool is_driver_name(const char *name)
{
	if (name[0] == 'c' && name[1] == 'u')
		return name[2] >= 'A' && name[2] <= 'Z';
	/* Letter by letter: see driver/libc_symbols.c about early lookups. */
	return name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l' &&
	       name[4] >= 'A' && name[4] <= 'Z';
}

/*
 * What the caller gets for `found`, the real answer to its lookup of `name`.
 * What is not there stays missing; another library's function of that name
 * (a profiler's wrapper) stays itself.
 */
static void *stand_in(const char *name, void *found)
{
	const struct hook *hook = hook_by_name(name);

	if (!hook) {
		drift_note(name);
		return found;
	}
	if (found != hook->function && !driver_owns(found))
		return found;
	if (slice_state() == SLICE_INERT)
		return found;
	return hook->function;
}

/* The object that an address lies in; NULL when it is none's. */
static struct link_map *object_of(const void *address)
{
	struct link_map *map = NULL;
	Dl_info object;

	return dladdr1(address, &object, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

/*
 * We export the hooks, so a search of the global scope, and so of the program's own
 * handle, finds this library's even where no driver is loaded: what comes after us decides
 * whether there is one. Who asks this library itself gets its own.
 */
static void *behind_us(const void *handle, const char *name, void *found)
{
	const struct hook *hook = hook_by_name(name);

	if (hook && found == hook->function && handle != object_of(hook->function))
		return libc_symbols()->dlsym(RTLD_NEXT, name);
	return found;
}

static void *ours_for(const void *handle, const char *name, void *found)
{
	if (found)
		found = behind_us(handle, name, found);
	return found ? stand_in(name, found) : NULL;
}

/* Asked for one of the entry points themselves: what leads to the C library leads here. */
static void *entry_point(void *found)
{
	const struct libc_symbols *libc = libc_symbols();

	if (found == (void *)libc->dlsym)
		return (void *)dlsym;
	if (found == (void *)libc->dlvsym)
		return (void *)dlvsym;
	if (found == (void *)libc->dlmopen)
		return (void *)dlmopen;
	return found == (void *)libc->dlopen ? (void *)dlopen : found;
}

static bool is_entry_point(const char *name)
{
	return name && name[0] == 'd' && name[1] == 'l' &&
	       (strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0 ||
		strcmp(name, "dlopen") == 0 || strcmp(name, "dlmopen") == 0);
}

/* By handle: a search of the global scope finds this library's by itself. */
static bool asks_for_entry_point(const void *handle, const char *name)
{
	return is_entry_point(name) && handle != RTLD_NEXT && handle != RTLD_DEFAULT;
}

/*
 * A wrapper asks for the next one after itself. Where that is the C library's it
 * stands behind us: this library's, which comes to the same without a driver. Where it is
 * another's, or this library's already, NULL: to be looked up as if we were not here.
 */
static void *next_entry_point(const void *handle, const char *name, const void *caller)
{
	if (handle != RTLD_NEXT || !is_entry_point(name))
		return NULL;
	const struct link_map *object = object_of(caller);
	void *found = object ? libc_symbols_after(object, name) : NULL;
	void *ours = entry_point(found);

	return ours != found ? ours : NULL;
}

static bool must_stay_real(const char *name, const void *caller)
{
	return !name || !is_driver_name(name) || driver_is_inside() || driver_owns(caller);
}

/*
 * The driver's own lookup. A search from the program on meets us first, where
 * the driver means itself: WSL's would call itself through us without end.
 */
static struct route route_of_driver(void *handle, const char *name)
{
	const struct libc_symbols *libc = libc_symbols();
	const bool is_ours = name && is_driver_name(name) && handle != RTLD_NEXT;
	const struct hook *hook = is_ours ? hook_by_name(name) : NULL;

	if (!hook || libc->dlsym(handle, name) != hook->function)
		return (struct route){.jump = (void *)libc->dlsym};
	return (struct route){.result = *hook->real ? *hook->real : libc->dlsym(RTLD_NEXT, name)};
}

/* Any thread, at any time, also before main and before our own relocations of data. */
__attribute__((used)) struct route route_dlsym(struct call *call)
{
	const struct libc_symbols *libc = libc_symbols();
	void *handle = call->first.pointer;
	const char *name = call->second.text;

	if (asks_for_entry_point(handle, name))
		return (struct route){.result = entry_point(libc->dlsym(handle, name))};
	void *next = next_entry_point(handle, name, call->caller);

	if (next)
		return (struct route){.result = next};
	if (must_stay_real(name, call->caller))
		return route_of_driver(handle, name);
	/* Our RTLD_NEXT starts behind us, in front of every driver: none is missed. */
	return (struct route){.result = ours_for(handle, name, libc->dlsym(handle, name))};
}

__attribute__((used)) struct route route_dlvsym(struct call *call)
{
	const struct libc_symbols *libc = libc_symbols();
	void *handle = call->first.pointer;
	const char *name = call->second.text, *version = call->third.text;

	if (asks_for_entry_point(handle, name))
		return (struct route){.result = entry_point(libc->dlvsym(handle, name, version))};
	void *next = next_entry_point(handle, name, call->caller);

	/* Where the C library has no such version, the answer stays that. */
	if (next && libc->dlvsym(RTLD_NEXT, name, version))
		return (struct route){.result = next};
	if (must_stay_real(name, call->caller))
		return (struct route){.jump = (void *)libc->dlvsym};
	return (struct route){.result =
				      ours_for(handle, name, libc->dlvsym(handle, name, version))};
}

/*
 * A library loaded with RTLD_DEEPBIND, and what it brings with it, looks for dlsym and
 * dlopen among its own dependencies first, finds the C library's, and then the driver
 * without us. Plugins that load their own version of something need the flag, so it is
 * taken only from those that may mean CUDA.
 *
 * A library that uses CUDA has the name of the driver or of its runtime somewhere in the file: as
 * what it needs, or, with the runtime linked into it, as what that loads.
 */
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

/*
 * Has the file, as dlopen is given it, certainly nothing to do with CUDA? It names
 * neither the driver nor the runtime, and brings no library of which that is not
 * known.
 */
static bool is_harmless_file(const char *file)
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

/* Where there is no slice to keep, or no CUDA, nobody loses the flag. */
static intptr_t flags_for(const char *file, intptr_t flags)
{
	const int saved = errno;

	if (flags & RTLD_DEEPBIND && slice_is_meant() && !is_harmless_file(file))
		flags &= ~(intptr_t)RTLD_DEEPBIND;
	errno = saved;
	return flags;
}

__attribute__((used)) struct route route_dlopen(struct call *call)
{
	call->second.number = flags_for(call->first.text, call->second.number);
	return (struct route){.jump = (void *)libc_symbols()->dlopen};
}

/* Another namespace has a C library and a driver of its own: docs/isolation.md says so. */
__attribute__((used)) struct route route_dlmopen(struct call *call)
{
	if (call->first.number == LM_ID_BASE)
		call->third.number = flags_for(call->second.text, call->third.number);
	return (struct route){.jump = (void *)libc_symbols()->dlmopen};
}

/*
 * dlsym, dlvsym, dlopen and dlmopen themselves. RTLD_NEXT depends on who calls, so they are
 * assembly: they ask the functions above, and then either jump to the real function with
 * the caller's return address, or return the answer.
 */
#if defined(__x86_64__)
#define ENTRY_POINT(name)                                                                          \
	__asm__(".text\n.globl " #name "\n.type " #name ",@function\n.p2align 4\n" #name           \
		":\n.cfi_startproc\nendbr64\n"                                                     \
		"push %rdi\n.cfi_adjust_cfa_offset 8\n"                                            \
		"push %rsi\n.cfi_adjust_cfa_offset 8\n"                                            \
		"push %rdx\n.cfi_adjust_cfa_offset 8\n"                                            \
		"mov %rsp, %rdi\ncall route_" #name "\nmov %rdx, %r11\n"                           \
		"pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                            \
		"pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                            \
		"pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                            \
		"test %rax, %rax\njz 1f\njmp *%rax\n"                                              \
		"1: mov %r11, %rax\nret\n"                                                         \
		".cfi_endproc\n.size " #name ", .-" #name "\n")
#elif defined(__aarch64__)
#define ENTRY_POINT(name)                                                                          \
	__asm__(".text\n.globl " #name "\n.type " #name ",%function\n.p2align 4\n" #name           \
		":\n.cfi_startproc\nhint #34\n"                                                    \
		"stp x29, x30, [sp, #-48]!\n.cfi_def_cfa_offset 48\n"                              \
		".cfi_offset 29, -48\n.cfi_offset 30, -40\n"                                       \
		"mov x29, sp\nstp x2, x1, [sp, #16]\nstp x0, x30, [sp, #32]\n"                     \
		"add x0, sp, #16\nbl route_" #name "\nmov x16, x0\nmov x17, x1\n"                  \
		"ldp x2, x1, [sp, #16]\nldr x0, [sp, #32]\n"                                       \
		"ldp x29, x30, [sp], #48\n.cfi_def_cfa_offset 0\n"                                 \
		".cfi_restore 29\n.cfi_restore 30\n"                                               \
		"cbz x16, 1f\nbr x16\n"                                                            \
		"1: mov x0, x17\nret\n"                                                            \
		".cfi_endproc\n.size " #name ", .-" #name "\n")
#else
#error "no entry points for this architecture"
#endif

ENTRY_POINT(dlsym);
ENTRY_POINT(dlvsym);
ENTRY_POINT(dlopen);
ENTRY_POINT(dlmopen);
