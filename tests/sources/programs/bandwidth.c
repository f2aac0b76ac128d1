/*
 * What the image of the source's Job does: copies of 32,000,000 bytes from the
 *host to the card, a line for each batch of them.
 *
 *	bandwidth [--num_batches=N] [--batch_size=N]
 */
#include <cuda.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 32000000 };
#define HELD                                                                                       \
	(337ULL << 20) /* what the source's process holds of its card, the context                 \
			  included */

static void *driver;

#define CALL(name, ...)                                                                            \
	do {                                                                                       \
		const CUresult result = ((__typeof__(name) *)dlsym(driver, #name))(__VA_ARGS__);   \
		if (result) {                                                                      \
			fprintf(stderr, "%s: %d\n", #name, result);                                \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static int copy(CUdeviceptr to, const void *from, long batches, long size)
{
	char now[64];

	for (long i = 0; i < batches; i++) {
		for (long j = 0; j < size; j++)
			CALL(cuMemcpyHtoD_v2, to, from, SIZE);
		const time_t seconds = time(NULL);

		strftime(now, sizeof(now), "%Y-%m-%d/%H:%M:%S", localtime(&seconds));
		printf("time: %s,count: %ld,memSize: %d,succeed to copy data from host to "
		       "gpu\n",
		       now, i, SIZE);
		fflush(stdout);
	}
	return 0;
}

int main(int count, char *words[])
{
	long batches = 1, size = 1;
	char name[128];
	CUdevice card = 0;
	CUcontext context = NULL;
	CUdeviceptr memory = 0;
	size_t available = 0, total = 0;

	for (int i = 1; i < count; i++) {
		sscanf(words[i], "--num_batches=%ld", &batches);
		sscanf(words[i], "--batch_size=%ld", &size);
	}
	signal(SIGTERM, _exit); /* the first process of a container is not ended by it otherwise */
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		return 1;
	CALL(cuInit, 0);
	CALL(cuDeviceGet, &card, 0);
	CALL(cuDeviceGetName, name, sizeof(name), card);
	CALL(cuDevicePrimaryCtxRetain, &context, card);
	CALL(cuCtxSetCurrent, context);
	CALL(cuMemGetInfo_v2, &available, &total);
	CALL(cuMemAlloc_v2, &memory, HELD - (total - available));
	printf("[CUDA Bandwidth Test] - Starting...\nRunning on...\n\n Device 0: "
	       "%s\n Quick Mode\n\n",
	       name);
	return copy(memory, calloc(1, SIZE), batches, size);
}
