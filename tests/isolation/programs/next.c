/*
 * Is dlsym(RTLD_NEXT) answered as from its caller? Preloaded after us stands
 * libplugin.so, which defines a function of the C library's as well.
 *
 *	next     prints what the program's own next is, and what the plugin's next is
 */
#include <dlfcn.h>
#include <stdio.h>

typedef const char *(*version)(void);

int main(void)
{
	void *(*plugin_next)(const char *) = NULL;
	version mine, its;

	*(void **)&mine = dlsym(RTLD_NEXT, "gnu_get_libc_version");
	*(void **)&plugin_next = dlsym(RTLD_DEFAULT, "plugin_next");
	if (!mine || !plugin_next)
		return 2;
	*(void **)&its = plugin_next("gnu_get_libc_version");
	printf("%s %s\n", mine(), its ? its() : "-");
	return 0;
}
