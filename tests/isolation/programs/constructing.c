/*
 * One thread opens a plugin whose constructor calls the driver; meanwhile, with the loader's lock
 * taken, another makes its own call. Prints both results; SIGALRM ends it when nobody gets on.
 *
 *	constructing first|context LIBRARY    the first call of the process, or of a context
 */
#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUresult (*init)(unsigned);
static CUresult (*retain)(CUcontext *, CUdevice);
static int is_context;
static atomic_int is_constructing, is_done, other, results[2];

static CUresult call(void)
{
	CUcontext context;

	return is_context ? retain(&context, 0) : init(0);
}

/* The other thread has ended its call, or sleeps in it. */
static int is_asleep(void)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&other));
	FILE *file = fopen(path, "r");

	if (!file)
		return 0;
	if (fscanf(file, "%*d %*s %c", &state) != 1)
		state = 0;
	fclose(file);
	return state == 'S';
}

static void constructs(void)
{
	atomic_store(&is_constructing, 1);
	while (!atomic_load(&other) || !(atomic_load(&is_done) || is_asleep()))
		usleep(1000);
	atomic_store(&results[1], (int)call());
}

static void *call_beside(void *unused)
{
	(void)unused;
	while (!atomic_load(&is_constructing))
		usleep(1000);
	atomic_store(&other, gettid());
	atomic_store(&results[0], (int)call());
	atomic_store(&is_done, 1);
	return NULL;
}

int main(int count, char **words)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	pthread_t thread;
	char address[32];

	if (count != 3 || !driver)
		return 2;
	alarm(60);
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	is_context = !strcmp(words[1], "context");
	if (is_context && init(0))
		return 3;
	snprintf(address, sizeof(address), "%p", (void *)constructs);
	setenv("CONSTRUCTOR_CALLS", address, 1);
	pthread_create(&thread, NULL, call_beside, NULL);
	if (!dlopen(words[2], RTLD_NOW))
		return 4;
	pthread_join(thread, NULL);
	printf("%d %d\n", atomic_load(&results[0]), atomic_load(&results[1]));
	return 0;
}
