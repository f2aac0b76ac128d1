/*
 * Counts what the library asks the C library for on the way of a call. Prints
 * how often it did at its start, which shows that it is seen; the turns made;
 * and, for each function that was called from within libgpuslice.so meanwhile,
 * its name and how often.
 *
 *	quiet COUNT
 */
#include "call.h"
#include "spin.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void *driver;
static volatile int is_watching;

enum { GETENV, OPEN, OPENAT, FOPEN, READ, PREAD, WRITE, ACCESS, GETPID, KINDS };

static const char *const names[KINDS] = {"getenv", "open",  "openat", "fopen", "read",
					 "pread",  "write", "access", "getpid"};
static unsigned long counts[KINDS];
static void *real[KINDS];

/* From whom: the driver may do as it likes. */
static void note(int kind, const void *caller)
{
	Dl_info object;

	if (is_watching && dladdr(caller, &object) && strstr(object.dli_fname, "libgpuslice"))
		counts[kind]++;
}

static void *real_of(int kind)
{
	if (!real[kind])
		real[kind] = dlsym(RTLD_NEXT, names[kind]);
	return real[kind];
}

#define CALLER __builtin_return_address(0)
#define PASSED_ON(kind, returned, name, parameters, ...)                                           \
	returned name parameters                                                                   \
	{                                                                                          \
		note(kind, CALLER);                                                                \
		return ((returned(*) parameters)real_of(kind))(__VA_ARGS__);                       \
	}

PASSED_ON(GETENV, char *, getenv, (const char *name), name)
PASSED_ON(FOPEN, FILE *, fopen, (const char *path, const char *mode), path, mode)
PASSED_ON(READ, ssize_t, read, (int fd, void *room, size_t bytes), fd, room, bytes)
PASSED_ON(PREAD, ssize_t, pread, (int fd, void *room, size_t bytes, off_t at), fd, room, bytes, at)
PASSED_ON(WRITE, ssize_t, write, (int fd, const void *room, size_t bytes), fd, room, bytes)
PASSED_ON(ACCESS, int, access, (const char *path, int mode), path, mode)
PASSED_ON(GETPID, pid_t, getpid, (void), )

int open(const char *path, int flags, ...)
{
	va_list rest;

	va_start(rest, flags);
	const mode_t mode = va_arg(rest, mode_t);

	va_end(rest);
	note(OPEN, CALLER);
	return ((int (*)(const char *, int, ...))real_of(OPEN))(path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
	va_list rest;

	va_start(rest, flags);
	const mode_t mode = va_arg(rest, mode_t);

	va_end(rest);
	note(OPENAT, CALLER);
	return ((int (*)(int, const char *, int, ...))real_of(OPENAT))(directory, path, flags,
								       mode);
}

/* What a training step consists of. A look at what is free may look for the dead, and is none. */
static CUresult turn(CUfunction spin)
{
	uint64_t duration_ns = 1;
	void *parameters[] = {&duration_ns};
	CUdeviceptr pointer;
	CUresult result = CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);

	if (!result)
		result = CALL(cuMemAlloc_v2, &pointer, 1 << 20);
	if (!result)
		result = CALL(cuMemFree_v2, pointer);
	if (!result)
		result = CALL(cuMemAllocAsync, &pointer, 1 << 20, NULL);
	return result ? result : CALL(cuMemFreeAsync, pointer, NULL);
}

static unsigned long counted(void)
{
	unsigned long sum = 0;

	for (int kind = 0; kind < KINDS; kind++)
		sum += counts[kind];
	return sum;
}

static CUresult start(CUfunction *spin)
{
	CUcontext context;
	CUmodule module;
	CUresult result = CALL(cuInit, 0);

	if (!result)
		result = CALL(cuDevicePrimaryCtxRetain, &context, 0);
	if (!result)
		result = CALL(cuCtxSetCurrent, context);
	if (!result)
		result = CALL(cuModuleLoadData, &module, spin_image);
	if (!result)
		result = CALL(cuModuleGetFunction, spin, module, "spin");
	return result ? result : turn(*spin);
}

int main(int count, char **words)
{
	const int turns = count > 1 ? atoi(words[1]) : 1;
	CUfunction spin;
	int done = 0;

	for (int kind = 0; kind < KINDS; kind++)
		real_of(kind);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	is_watching = 1;
	if (!driver || start(&spin))
		return 2;
	printf("%lu ", counted());
	memset(counts, 0, sizeof(counts));
	while (done < turns && !turn(spin))
		done++;
	is_watching = 0;
	printf("%d\n", done);
	for (int kind = 0; kind < KINDS; kind++)
		if (counts[kind])
			printf("%s %lu\n", names[kind], counts[kind]);
	return 0;
}
