/* A library that looks the driver up by itself, as a plugin of a program would. */
#include <dlfcn.h>
#include <stddef.h>

/* A function of the C library's, to see whose answer RTLD_NEXT gives. */
const char *gnu_get_libc_version(void);
const char *gnu_get_libc_version(void)
{
	return "ours";
}

/* Its own where it was opened with RTLD_DEEPBIND, else the C library's. */
const char *plugin_version(void);
const char *plugin_version(void)
{
	return gnu_get_libc_version();
}

void *plugin_look(const char *name);
void *plugin_look(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	return driver ? dlsym(driver, name) : NULL;
}

/* The next one after this library, not after the one that passes the question on. */
void *plugin_next(const char *name);
void *plugin_next(const char *name)
{
	/* Not a call in the tail, or its caller would be the one who looks. */
	void *volatile found = dlsym(RTLD_NEXT, name);

	return found;
}

void *plugin_next_version(const char *name, const char *version);
void *plugin_next_version(const char *name, const char *version)
{
	void *volatile found = dlvsym(RTLD_NEXT, name, version);

	return found;
}
