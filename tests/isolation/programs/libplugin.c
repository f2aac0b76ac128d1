/* A library that looks the driver up by itself, as a plugin of a program would. */
#include <dlfcn.h>
#include <stddef.h>

/* A function of the C library's, to see whose answer RTLD_NEXT gives. */
const char *gnu_get_libc_version(void);
const char *gnu_get_libc_version(void)
{
	return "ours";
}

void *plugin_look(const char *name);
void *plugin_look(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	return driver ? dlsym(driver, name) : NULL;
}

/* The next one after this library, not after whoever passes the question on. */
void *plugin_next(const char *name);
void *plugin_next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}
