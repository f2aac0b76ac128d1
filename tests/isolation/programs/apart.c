/*
 * Threads that each make a context where none is current; prints failures, and
 * what the slice shows as used by all of them, in bytes.
 *
 *	apart THREADS
 */
#include "call.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 16 };

static void *driver;

static void *make(void *ignored)
{
	CUcontext context;

	(void)ignored;
	return (void *)(uintptr_t)CALL(cuCtxCreate_v2, &context, 0, 0);
}

int main(int count, char **words)
{
	const int many = count > 1 ? atoi(words[1]) : 1;
	size_t before, after, total_bytes;
	pthread_t threads[MOST_THREADS];
	unsigned long failures = 0;
	CUcontext context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver || many > MOST_THREADS || CALL(cuInit, 0) ||
	    CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
		return 2;
	CALL(cuMemGetInfo_v2, &before, &total_bytes);
	for (int i = 0; i < many; i++)
		pthread_create(&threads[i], NULL, make, NULL);
	for (int i = 0; i < many; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		failures += failed != NULL;
	}
	CALL(cuMemGetInfo_v2, &after, &total_bytes);
	printf("%lu %zu\n", failures, before - after);
	return 0;
}
