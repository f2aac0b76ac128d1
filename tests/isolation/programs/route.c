/*
 * Looks driver functions up in every way a program can, and prints for each
 * "<way> <name> <library that the answer lies in>", or "-" for not found.
 *
 *	route <way> <name>...
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(const char *way, const char *name, void *found)
{
	Dl_info object;
	const char *file = "-";

	if (found)
		file = dladdr(found, &object) ? object.dli_fname : "?";
	printf("%s %s %s\n", way, name, strrchr(file, '/') ? strrchr(file, '/') + 1 : file);
}

static void by_dlvsym(void *driver, const char *name)
{
	/* The simulated driver's symbols have no versions; the C library's have. */
	void *versioned = dlvsym(RTLD_DEFAULT, "pthread_create", "GLIBC_2.2.5");

	show("dlvsym", "pthread_create", versioned);
	show("dlvsym", name, dlvsym(driver, name, "NONE"));
}

/* Through the C library's own dlsym, asked for by version: where `from` says.
 */
static void by_versioned(const char *way, void *from, void *driver, const char *name)
{
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	void *(*look)(void *, const char *) = NULL;

	for (size_t i = 0; !look && i < sizeof(versions) / sizeof(versions[0]); i++)
		*(void **)&look = dlvsym(from, "dlsym", versions[i]);
	show(way, name, look ? look(driver, name) : NULL);
}

static void by_plugin(const char *way, const char *path, const char *name)
{
	void *plugin = !strcmp(way, "dlmopen")
			       ? dlmopen(LM_ID_BASE, path, RTLD_NOW | RTLD_DEEPBIND)
			       : dlopen(path, strcmp(way, "deepbind") ? RTLD_NOW
								      : RTLD_NOW | RTLD_DEEPBIND);
	void *(*look)(const char *) = NULL;

	if (plugin)
		*(void **)&look = dlsym(plugin, "plugin_look");
	show(way, name, look ? look(name) : NULL);
}

/* Whose function a plugin calls that was opened with RTLD_DEEPBIND. */
static void by_binding(const char *path)
{
	void *plugin = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
	const char *(*version)(void) = NULL;

	if (plugin)
		*(void **)&version = dlsym(plugin, "plugin_version");
	puts(version ? version() : "-");
}

typedef CUresult (*get_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v2)(const char *, void **, int, cuuint64_t,
			   CUdriverProcAddressQueryResult *);

/* address1|address2 NAME VERSION FLAGS: prints the result and symbolStatus too.
 */
static void by_address(void *driver, char **words)
{
	const int version = atoi(words[3]);
	const cuuint64_t flags = strtoull(words[4], NULL, 0);
	const char *name = strcmp(words[2], "NULL") ? words[2] : NULL;
	CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)77;
	void *found = NULL;
	CUresult result;

	if (!strcmp(words[1], "address1")) {
		get_v1 get = (get_v1)dlsym(driver, "cuGetProcAddress");

		result = get(name, &found, version, flags);
	} else {
		get_v2 get = (get_v2)dlsym(driver, "cuGetProcAddress_v2");

		result = get(name, &found, version, flags, &status);
	}
	show(words[1], words[2], found);
	/* Which version: the address of the export with the same code, ours or the
	 * driver's. */
	const char *suffixes[] = {"", "_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptsz"};
	const char *same = "-";
	char export[128];

	for (size_t i = 0; name && found && i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		snprintf(export, sizeof(export), "%s%s", name, suffixes[i]);
		if (dlsym(driver, export) == found)
			same = suffixes[i][0] ? suffixes[i] : "plain";
	}
	printf("%d %d %s\n", result, status, same);
}

int main(int count, char **words)
{
	if (count < 3)
		return 2;
	if (!strcmp(words[1], "binding")) {
		by_binding(words[2]);
		return 0;
	}
	const int flags = !strcmp(words[1], "default") || !strcmp(words[1], "next") ||
					  !strcmp(words[1], "program") ||
					  !strcmp(words[1], "next-twice")
				  ? RTLD_NOW | RTLD_GLOBAL
				  : RTLD_NOW;
	const bool is_unloaded = !strncmp(words[1], "unloaded", 8);
	void *driver = is_unloaded ? NULL : dlopen("libcuda.so.1", flags);

	if (!driver && !is_unloaded)
		return 3;
	if (!strncmp(words[1], "address", 7)) {
		by_address(driver, words);
		return 0;
	}
	if (!strcmp(words[1], "plugin") || !strcmp(words[1], "deepbind") ||
	    !strcmp(words[1], "dlmopen")) {
		for (int i = 3; i < count; i++)
			by_plugin(words[1], words[2], words[i]);
		return 0;
	}
	for (int i = 2; i < count; i++) {
		if (!strcmp(words[1], "handle"))
			show("handle", words[i], dlsym(driver, words[i]));
		else if (!strcmp(words[1], "default") || !strcmp(words[1], "unloaded"))
			show(words[1], words[i], dlsym(RTLD_DEFAULT, words[i]));
		else if (!strcmp(words[1], "program") || !strcmp(words[1], "unloaded-program"))
			show(words[1], words[i], dlsym(dlopen(NULL, RTLD_NOW), words[i]));
		else if (!strcmp(words[1], "next"))
			show("next", words[i], dlsym(RTLD_NEXT, words[i]));
		else if (!strcmp(words[1], "next-twice"))
			show("next-twice", words[i],
			     dlsym(RTLD_NEXT, words[i]) == dlsym(RTLD_NEXT, words[i])
				     ? dlsym(RTLD_NEXT, words[i])
				     : NULL);
		else if (!strcmp(words[1], "dlvsym"))
			by_dlvsym(driver, words[i]);
		else if (!strcmp(words[1], "versioned"))
			by_versioned(words[1], dlopen("libc.so.6", RTLD_NOW), driver, words[i]);
		else if (!strcmp(words[1], "versioned-next"))
			by_versioned(words[1], RTLD_NEXT, driver, words[i]);
		else if (!strcmp(words[1], "versioned-default"))
			by_versioned(words[1], RTLD_DEFAULT, driver, words[i]);
	}
	return 0;
}
