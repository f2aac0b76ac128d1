/*
 * Is dlsym(RTLD_NEXT) answered as from its caller? Preloaded after us stands
 * libplugin.so, which defines a function of the C library's as well.
 *
 *	next          prints what the program's own next is, and what the plugin's next is
 *	next lookup   prints the libraries of the dlsym that the plugin finds next, without and
 *	              with the C library's version of it, and with one that it has not
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef const char *(*version)(void);

static void show(void *found)
{
	Dl_info object;

	printf("%s\n", found && dladdr(found, &object) ? strrchr(object.dli_fname, '/') + 1 : "-");
}

static int show_lookups(void)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	void *(*plugin_next)(const char *) = NULL;
	void *(*plugin_next_version)(const char *, const char *) = NULL;
	void *versioned = NULL;

	*(void **)&plugin_next = dlsym(RTLD_DEFAULT, "plugin_next");
	*(void **)&plugin_next_version = dlsym(RTLD_DEFAULT, "plugin_next_version");
	if (!plugin_next || !plugin_next_version)
		return 2;
	for (size_t i = 0; !versioned && i < sizeof(versions) / sizeof(versions[0]); i++)
		versioned = plugin_next_version("dlsym", versions[i]);
	show(plugin_next("dlsym"));
	show(versioned);
	show(plugin_next_version("dlsym", "NONE"));
	return 0;
}

int main(int count, char **words)
{
	void *(*plugin_next)(const char *) = NULL;
	version mine, its;

	if (count > 1 && !strcmp(words[1], "lookup"))
		return show_lookups();
	*(void **)&mine = dlsym(RTLD_NEXT, "gnu_get_libc_version");
	*(void **)&plugin_next = dlsym(RTLD_DEFAULT, "plugin_next");
	if (!mine || !plugin_next)
		return 2;
	*(void **)&its = plugin_next("gnu_get_libc_version");
	printf("%s %s\n", mine(), its ? its() : "-");
	return 0;
}
