/*
 * A program of CUDA's runtime library, LINKED TO THE RUNTIME. Prints the result
 * of a call that starts it, then every driver function whose address it keeps
 * from then on, "<name> <library that it lies in>", as often as it keeps it.
 *
 *	runtime LIBRARY	loads the runtime from this file for itself alone, as programs do
 *			that bring their own; built with BUNDLED, and not linked
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The runtime's header wants headers of the compiler's package. */
#ifdef BUNDLED
static int (*cudaMemGetInfo)(size_t *free_bytes, size_t *total_bytes);
#else
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
#endif

static void show(void *address)
{
	Dl_info object;

	if (!dladdr(address, &object) || object.dli_saddr != address || !object.dli_sname)
		return;
	const char *slash = strrchr(object.dli_fname, '/');

	if (strncmp(object.dli_sname, "cu", 2) == 0 && strncmp(object.dli_sname, "cuda", 4) != 0)
		printf("%s %s\n", object.dli_sname, slash ? slash + 1 : object.dli_fname);
}

/*
 * Everything that it can write to, but neither the driver's nor our own tables: of these
 * what the file does not hold lies behind it, in a mapping without a name.
 */
static int is_the_runtimes(const char *mapping, uintptr_t first, uintptr_t last)
{
	static uintptr_t end_of_others;
	const int is_named = strchr(mapping, '/') || strchr(mapping, '[');
	const int is_others = strstr(mapping, "libcuda.so") || strstr(mapping, "libgpuslice") ||
			      (!is_named && first == end_of_others);

	if (is_others)
		end_of_others = last;
	return !is_others && strstr(mapping, " rw") && !strstr(mapping, "[stack]");
}

int main(int count, char **words)
{
	size_t free_bytes = 0, total_bytes = 0;
	uintptr_t first, last;
	char line[4096];

	(void)count;
	(void)words;
#ifdef BUNDLED
	void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);

	*(void **)&cudaMemGetInfo = library ? dlsym(library, "cudaMemGetInfo") : NULL;
	if (!cudaMemGetInfo)
		return 2;
#endif

	printf("%d\n", cudaMemGetInfo(&free_bytes, &total_bytes));
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &first, &last) == 2 &&
		    is_the_runtimes(line, first, last))
			for (void **at = (void **)first; at < (void **)last; at++)
				show(*at);
	return 0;
}
