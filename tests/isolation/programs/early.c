/*
 * Forks while another thread looks the driver up for the first time, and lets the child do the
 * same. The thread says nothing: what holds it up knows when it is in the middle.
 *
 *	early cuda|nvml     waits for a line, forks, prints what the child and then the thread got
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <nvml.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int start_cuda(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");

	return init ? (int)init(0) : -1;
}

static int start_nvml(void)
{
	void *driver = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	__typeof__(nvmlInit_v2) *init = (__typeof__(init))dlsym(driver, "nvmlInit_v2");
	__typeof__(nvmlDeviceGetMemoryInfo) *ask =
		(__typeof__(ask))dlsym(driver, "nvmlDeviceGetMemoryInfo");
	__typeof__(nvmlDeviceGetHandleByIndex_v2) *find =
		(__typeof__(find))dlsym(driver, "nvmlDeviceGetHandleByIndex_v2");
	nvmlMemory_t memory;
	nvmlDevice_t card;

	if (!init || !ask || !find || init() != NVML_SUCCESS || find(0, &card) != NVML_SUCCESS)
		return -1;
	return (int)ask(card, &memory);
}

static int (*start)(void);
static int got = -1;

static void *look(void *argument)
{
	got = start();
	return argument;
}

int main(int count, char **words)
{
	pthread_t thread;
	char line[8];
	int status = -1;

	if (count != 2)
		return 2;
	start = strcmp(words[1], "nvml") ? start_cuda : start_nvml;
	pthread_create(&thread, NULL, look, NULL);
	if (!fgets(line, sizeof(line), stdin))
		return 3;
	const pid_t child = fork();

	if (child == 0) {
		alarm(30);
		_exit(start());
	}
	waitpid(child, &status, 0);
	printf("%d\n", status);
	fflush(stdout);
	pthread_join(thread, NULL);
	printf("%d\n", got);
	return 0;
}
