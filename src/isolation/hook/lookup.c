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

/*
 * By handle or by version; a search of the global scope for the plain name finds this library's by
 * itself, but the C library's where it names a version, which ours have not.
 */
static bool asks_for_entry_point(const void *handle, const char *name, bool has_version)
{
	return is_entry_point(name) &&
	       (has_version || (handle != RTLD_NEXT && handle != RTLD_DEFAULT));
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

/* The driver's own lookups: not those of a tool that it opens while it starts. */
static bool must_stay_real(const char *name, const void *caller)
{
	return !name || !is_driver_name(name) || driver_owns(caller);
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

static void *really(const struct call *call, bool has_version)
{
	const struct libc_symbols *libc = libc_symbols();
	void *handle = call->first.pointer;
	const char *name = call->second.text;

	/* Our RTLD_NEXT starts behind us, in front of every driver: none is missed. */
	return has_version ? libc->dlvsym(handle, name, call->third.text)
			   : libc->dlsym(handle, name);
}

/* Any thread, at any time, also before main and before our own relocations of data. */
static struct route look(const struct call *call, bool has_version)
{
	const struct libc_symbols *libc = libc_symbols();
	void *handle = call->first.pointer;
	const char *name = call->second.text;

	if (asks_for_entry_point(handle, name, has_version)) {
		void *found = really(call, has_version), *ours = entry_point(found);

		/* Another wrapper's stays where it is in the order that the caller sees. */
		if (ours != found || handle != RTLD_NEXT)
			return (struct route){.result = ours};
	}
	void *next = has_version ? NULL : next_entry_point(handle, name, call->caller);

	if (next)
		return (struct route){.result = next};
	if (!must_stay_real(name, call->caller))
		return (struct route){.result = ours_for(handle, name, really(call, has_version))};
	return has_version ? (struct route){.jump = (void *)libc->dlvsym}
			   : route_of_driver(handle, name);
}

__attribute__((used)) struct route route_dlsym(struct call *call)
{
	return look(call, false);
}

__attribute__((used)) struct route route_dlvsym(struct call *call)
{
	return look(call, true);
}

/*
 * A library loaded with RTLD_DEEPBIND, and what it brings with it, looks for dlsym and
 * dlopen among its own dependencies first, finds the C library's, and then the driver
 * without us. Plugins that load their own version of something need the flag, so it is
 * taken only from those that may mean CUDA.
 *
 * A library that uses CUDA has the name of the driver or of its runtime somewhere in the file: as
 * what it needs, or, with the runtime linked into it, as what that loads. What it brings has its
 * name there as well.
 */

/* Libraries that are there keep the order in which they look; nor do the compilers' use CUDA. */
static bool brings_nothing(const char *named, const char *file)
{
	static const char *const compilers[] = {"libc.so.",     "libm.so.",  "libdl.so.",
						"libpthread.",  "librt.so.", "libstdc++.so.",
						"libgcc_s.so.", "ld-linux"};
	const char *own = strrchr(file, '/') + 1, *ending = strstr(own, ".so");
	const size_t stem = ending ? (size_t)(ending - own) : strlen(own);

	for (size_t i = 0; i < sizeof(compilers) / sizeof(compilers[0]); i++)
		if (strncmp(named, compilers[i], strlen(compilers[i])) == 0)
			return true;
	/* Itself, in whatever version: it may be opened by a link. */
	if (strncmp(named, own, stem) == 0 && strncmp(named + stem, ".so", 3) == 0 &&
	    !named[stem + 3 + strspn(named + stem + 3, ".0123456789")])
		return true;
	void *loaded = libc_symbols()->dlopen(named, RTLD_LAZY | RTLD_NOLOAD);

	if (loaded)
		dlclose(loaded);
	return loaded;
}

static bool is_harmless(const char *bytes, size_t size, const char *file)
{
	const char *end = bytes + size, *found = bytes;

	if (memmem(bytes, size, "libcuda", 7) || memmem(bytes, size, "libnvidia", 9))
		return false;
	while ((found = memmem(found, (size_t)(end - found), ".so", 3))) {
		const char *named = found;

		found += 3;
		if (found < end && *found && *found != '.')
			continue;
		while (named > bytes && named[-1])
			named--;
		if (!memchr(found, 0, (size_t)(end - found)) || !brings_nothing(named, file))
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
	void *bytes = MAP_FAILED;

	/* By a name alone the loader searches, and where it finds it is its own affair. */
	if (!file || !strchr(file, '/'))
		return false;
	const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		return false;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
		bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (bytes == MAP_FAILED)
		return false;
	const bool answer = is_harmless(bytes, (size_t)status.st_size, file);

	munmap(bytes, (size_t)status.st_size);
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
