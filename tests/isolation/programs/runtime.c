/*
 * A program of CUDA's runtime library, LINKED TO THE RUNTIME. Prints the result
 * of a call that starts it, then every driver function whose address it keeps
 * from then on, "<name> <library that it lies in>", as often as it keeps it.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The runtime's header wants headers of the compiler's package. */
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

static void show(void *address)
{
	Dl_info object;

	if (!dladdr(address, &object) || object.dli_saddr != address || !object.dli_sname)
		return;
	const char *slash = strrchr(object.dli_fname, '/');

	if (strncmp(object.dli_sname, "cu", 2) == 0 && strncmp(object.dli_sname, "cuda", 4) != 0)
		printf("%s %s\n", object.dli_sname, slash ? slash + 1 : object.dli_fname);
}

/* Everything that it can write to, but neither the driver's nor our own tables. */
static int is_the_runtimes(const char *mapping)
{
	return strstr(mapping, " rw") && !strstr(mapping, "libcuda.so") &&
	       !strstr(mapping, "libgpuslice") && !strstr(mapping, "[stack]");
}

int main(void)
{
	size_t free_bytes = 0, total_bytes = 0;
	uintptr_t first, last;
	char line[4096];

	printf("%d\n", cudaMemGetInfo(&free_bytes, &total_bytes));
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		if (is_the_runtimes(line) &&
		    sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &first, &last) == 2)
			for (void **at = (void **)first; at < (void **)last; at++)
				show(*at);
	return 0;
}
