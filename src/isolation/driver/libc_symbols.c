/*
 * Finds the C library's dlsym without calling any dlsym, and tells loaded objects apart. A file can
 * be copied under any name, so the soname inside counts as well: a private copy of the driver is
 * the driver.
 *
 * We export dlsym, dlvsym, dlopen and dlmopen, so every ordinary reference, this library's too,
 * ends at us. The loaded objects' own symbol tables say where the real ones
 * are: in libc.so.6 since glibc 2.34, in libdl.so.2 before.
 *
 * Others may look functions up before the C library's own string functions can
 * be called (a sanitizer that stands in for them), so none is used here.
 */
#include "driver/libc_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct object {
	ElfW(Addr) base;
	const ElfW(Sym) * symbols;
	const char *strings, *soname;
	const uint32_t *gnu_hash;
};

static bool is_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

static uint32_t gnu_hash_of(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

/*
 * glibc relocates these pointers in place on our architectures; other loaders may not. Nobody does
 * for the vDSO, which gVisor and user-mode Linux link at an address that only a kernel has.
 */
static const void *at(ElfW(Addr) base, ElfW(Addr) pointer)
{
	return (const void *)(pointer < base || (intptr_t)pointer < 0 ? base + pointer : pointer);
}

static struct object object_read(const struct link_map *map)
{
	struct object object = {.base = map->l_addr};
	const ElfW(Dyn) *soname = NULL;

	for (const ElfW(Dyn) *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			object.symbols = at(object.base, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_STRTAB)
			object.strings = at(object.base, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_GNU_HASH)
			object.gnu_hash = at(object.base, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_SONAME)
			soname = entry;
	}
	if (soname && object.strings)
		object.soname = object.strings + soname->d_un.d_val;
	return object;
}

/* Any version will do: glibc keeps one function under all of its versions. */
static void *object_find(const struct object *object, const char *name)
{
	if (!object->symbols || !object->strings || !object->gnu_hash)
		return NULL;
	const uint32_t bucket_count = object->gnu_hash[0];
	const uint32_t first = object->gnu_hash[1];
	const uint32_t bloom_words = object->gnu_hash[2];
	const uint32_t *buckets =
		object->gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	const uint32_t *chain = buckets + bucket_count;
	const uint32_t hash = gnu_hash_of(name);
	uint32_t index = bucket_count ? buckets[hash % bucket_count] : 0;

	if (index < first)
		return NULL;
	for (;; index++) {
		const uint32_t entry = chain[index - first];
		const ElfW(Sym) *symbol = &object->symbols[index];

		if ((entry | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
		    is_same(object->strings + symbol->st_name, name))
			return (void *)(object->base + symbol->st_value);
		if (entry & 1)
			return NULL;
	}
}

static bool begins(const char *text, const char *word)
{
	while (*word && *text == *word) {
		text++;
		word++;
	}
	return !*word;
}

static bool has_name(const struct link_map *map, const char *const *beginnings)
{
	const char *file = map->l_name;
	const char *soname = object_read(map).soname;

	for (const char *at = map->l_name; at && *at; at++)
		if (*at == '/')
			file = at + 1;
	for (; *beginnings; beginnings++)
		if ((file && begins(file, *beginnings)) || (soname && begins(soname, *beginnings)))
			return true;
	return false;
}

bool object_is_c_library(const struct link_map *map)
{
	static const char *const names[] = {"libc.so.", "libc-2.", "libdl.so.", "libdl-2.", NULL};

	return has_name(map, names);
}

bool object_is_driver(const struct link_map *map)
{
	static const char *const names[] = {"libcuda.so", "libcuda_", "libnvidia-ml.so", NULL};

	return has_name(map, names);
}

/* In the order of loading, which for what a program starts with is that of the search. */
void *libc_symbols_after(const struct link_map *object, const char *name)
{
	for (object = object->l_next; object; object = object->l_next) {
		const struct object read = object_read(object);
		void *found = object_find(&read, name);

		if (found)
			return found;
	}
	return NULL;
}

static void look(const struct link_map *map, struct libc_symbols *found)
{
	if (!object_is_c_library(map))
		return;
	const struct object object = object_read(map);

	if (!found->dlsym)
		*(void **)&found->dlsym = object_find(&object, "dlsym");
	if (!found->dlvsym)
		*(void **)&found->dlvsym = object_find(&object, "dlvsym");
	if (!found->dlopen)
		*(void **)&found->dlopen = object_find(&object, "dlopen");
	if (!found->dlmopen)
		*(void **)&found->dlmopen = object_find(&object, "dlmopen");
}

/*
 * Looked up once; members are NULL where the C library has none. Threads that
 * come first together find the same addresses and write the same bytes.
 */
const struct libc_symbols *libc_symbols(void)
{
	static struct libc_symbols symbols;
	static atomic_int is_known;

	if (!atomic_load_explicit(&is_known, memory_order_acquire)) {
		struct libc_symbols found = {0};

		/* The C library is loaded before us and never unloaded: no lock is needed. */
		for (const struct link_map *map = _r_debug.r_map;
		     map && !(found.dlsym && found.dlvsym && found.dlopen && found.dlmopen);
		     map = map->l_next)
			look(map, &found);
		/* Atomic stores: another thread may be writing the same values. */
		__atomic_store_n(&symbols.dlsym, found.dlsym, __ATOMIC_RELAXED);
		__atomic_store_n(&symbols.dlvsym, found.dlvsym, __ATOMIC_RELAXED);
		__atomic_store_n(&symbols.dlopen, found.dlopen, __ATOMIC_RELAXED);
		__atomic_store_n(&symbols.dlmopen, found.dlmopen, __ATOMIC_RELAXED);
		atomic_store_explicit(&is_known, 1, memory_order_release);
	}
	return &symbols;
}
