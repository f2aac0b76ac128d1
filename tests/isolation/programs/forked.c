/*
 * Forks again and again while another thread makes the process's first context, for
 * which NVML is started. The children ask for a context and are refused by the driver,
 * as those of a process with CUDA are.
 *
 *	forked    prints how many children there were, and how many did not come back
 */
#include "call.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CHILDREN = 64, PATIENCE_SECONDS = 20 };

static void *driver;
static atomic_bool may_begin, is_made;

static void *make_first(void *argument)
{
	CUcontext context;

	while (!atomic_load(&may_begin))
		;
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	atomic_store(&is_made, true);
	return argument;
}

static pid_t fork_child(void)
{
	CUcontext context;
	const pid_t child = fork();

	if (child == 0)
		_exit(CALL(cuDevicePrimaryCtxRetain, &context, 0) == CUDA_SUCCESS);
	return child;
}

/* The time is that of all together. */
static bool has_ended(pid_t child)
{
	static const struct timespec pause = {.tv_nsec = 10000000};
	static int waited;

	while (waitpid(child, NULL, WNOHANG) != child) {
		if (++waited > PATIENCE_SECONDS * 100) {
			kill(child, SIGKILL);
			waitpid(child, NULL, 0);
			return false;
		}
		nanosleep(&pause, NULL);
	}
	return true;
}

int main(void)
{
	pid_t children[MOST_CHILDREN];
	int count = 0, stuck = 0;
	pthread_t thread;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || CALL(cuInit, 0))
		return 2;
	pthread_create(&thread, NULL, make_first, NULL);
	children[count++] = fork_child();
	atomic_store(&may_begin, true);
	while (!atomic_load(&is_made) && count < MOST_CHILDREN)
		children[count++] = fork_child();
	for (int i = 0; i < count; i++)
		stuck += !has_ended(children[i]);
	pthread_join(thread, NULL);
	printf("%d %d\n", count, stuck);
	return 0;
}
