/*
 * Many processes that start CUDA at the same moment: exec, cuInit, a context,
 * one allocation.
 *
 *	inits <processes>       prints "<failed>" and the slowest in microseconds
 *	inits child <fd>        one of them: waits until the pipe ends, then starts
 */
#include "call.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int start(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;
	CUdeviceptr pointer;

	if (!driver)
		return 10;
	if (CALL(cuInit, 0))
		return 11;
	if (CALL(cuDevicePrimaryCtxRetain, &context, 0))
		return 12;
	if (CALL(cuCtxSetCurrent, context))
		return 13;
	return CALL(cuMemAlloc_v2, &pointer, 1 << 20) ? 14 : 0;
}

int main(int count, char **words)
{
	int ends[2], status, failed = 0;
	struct timespec begin, end;
	char byte;

	if (count == 3) {
		while (read(atoi(words[2]), &byte, 1) > 0)
			;
		return start();
	}
	if (count != 2 || pipe(ends))
		return 2;
	fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	char number[16];

	snprintf(number, sizeof(number), "%d", ends[0]);
	for (int i = 0; i < atoi(words[1]); i++)
		if (fork() == 0) {
			execl("/proc/self/exe", words[0], "child", number, (char *)NULL);
			_exit(9);
		}
	usleep(200000);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	close(ends[1]);
	while (wait(&status) > 0)
		failed += status != 0;
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%d %ld\n", failed,
	       (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000);
	return 0;
}
