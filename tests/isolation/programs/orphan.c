/*
 * Forks a child while another thread, which starts CUDA, waits at one of our points until
 * a file is removed; see killpoint.c. Both stay: the child's pid is printed when the
 * thread has allocated 1000 MiB.
 *
 *	orphan FILE
 */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static void *driver;

static void *allocate(void *argument)
{
	CUcontext context;
	CUdeviceptr pointer;

	if (CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
	    CALL(cuCtxSetCurrent, context) || CALL(cuMemAlloc_v2, &pointer, 1000 << 20))
		_exit(3);
	return argument;
}

int main(int count, char **words)
{
	const struct timespec nap = {.tv_nsec = 1000000};
	pthread_t thread;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 2 || !driver)
		return 2;
	pthread_create(&thread, NULL, allocate, NULL);
	while (access(words[1], F_OK) != 0)
		nanosleep(&nap, NULL);
	const pid_t child = fork();

	if (child == 0) {
		/* Who reads what its parent writes must not wait for it. */
		for (int fd = 0; fd <= STDERR_FILENO; fd++)
			close(fd);
		for (;;)
			pause();
	}
	unlink(words[1]);
	pthread_join(thread, NULL);
	printf("%d\n", child);
	fflush(stdout);
	for (;;)
		pause();
}
