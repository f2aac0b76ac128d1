/*
 * Finds the driver as most programs do, by dlopen, so that any version will do:
 * `old_driver has NAME...` tells its CUDA version, and which names it exports.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*get_version)(int *version);
	int version;

	if (!driver || count < 3 || strcmp(words[1], "has") != 0) {
		fprintf(stderr, "%s\n", driver ? "has what?" : dlerror());
		return 2;
	}
	*(void **)&get_version = dlsym(driver, "cuDriverGetVersion");
	get_version(&version);
	printf("%d", version);
	for (int i = 2; i < count; i++)
		printf(" %d", dlsym(driver, words[i]) != NULL);
	puts("");
	return 0;
}
