/*
 * A libnvidia-ml.so.1 that is not the simulator's: two cards, and files beside it that say how it
 * behaves. `inits` gets a byte each time it is opened; opening waits while there is `hold`, and
 * takes the microseconds in `slow`. Waiting for events hangs while there is `hang`. `lost1`, `mig1` and `noxids1` are card 1's. `xids` has a line "card code"
 * for each event; a process hears those that are written after it asked for events. While there is
 * `stuck1`, asking for card 1's memory does not return, and no other call of that process does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15 };

struct event {
	void *device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
};

static char cards[2];
static long heard;

static const char *place(const char *name)
{
	static _Thread_local char path[4096];
	Dl_info self;
	dladdr((void *)place, &self);
	snprintf(path, sizeof(path), "%.*s%s", (int)(strrchr(self.dli_fname, '/') + 1 - self.dli_fname),
		 self.dli_fname, name);
	return path;
}

static long size_of(const char *name)
{
	struct stat found;
	return stat(place(name), &found) ? -1 : (long)found.st_size;
}

static pthread_mutex_t every_call = PTHREAD_MUTEX_INITIALIZER;

static void wait_for_turn(void *device)
{
	pthread_mutex_lock(&every_call);
	while (device == &cards[1] && size_of("stuck1") >= 0)
		usleep(10000);
	pthread_mutex_unlock(&every_call);
}

static int card_state(void *device)
{
	return device == &cards[1] && size_of("lost1") >= 0 ? GPU_IS_LOST : 0;
}

int nvmlInitWithFlags(unsigned flags)
{
	int file = open(place("inits"), O_WRONLY | O_CREAT | O_APPEND, 0644);
	char text[32] = "";
	(void)flags;
	if (write(file, "i", 1) != 1)
		return 999;
	close(file);
	while (size_of("hold") >= 0)
		usleep(10000);
	if ((file = open(place("slow"), O_RDONLY)) >= 0) {
		if (read(file, text, sizeof(text) - 1) > 0)
			usleep((useconds_t)atoi(text));
		close(file);
	}
	return 0;
}

int nvmlShutdown(void)
{
	return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
	wait_for_turn(NULL);
	snprintf(version, size, "535.1");
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = 2;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	*device = &cards[index];
	return card_state(*device);
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size)
{
	snprintf(uuid, size, "GPU-%ld", (long)((char *)device - cards));
	return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
	wait_for_turn(device);
	memory[0] = memory[1] = 16ULL << 30;
	memory[2] = 0;
	return card_state(device);
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
	*current = *pending = device == &cards[1] && size_of("mig1") >= 0;
	return 0;
}

int nvmlEventSetCreate(void **set)
{
	*set = cards;
	heard = size_of("xids");
	return 0;
}

int nvmlEventSetFree(void *set)
{
	(void)set;
	return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
	(void)types, (void)set;
	return device == &cards[1] && size_of("noxids1") >= 0 ? NOT_SUPPORTED : card_state(device);
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned wait_ms)
{
	(void)set;
	wait_for_turn(NULL);
	while (size_of("hang") >= 0)
		usleep(10000);
	for (unsigned waited = 0; size_of("xids") <= heard; waited += 5) {
		if (waited >= wait_ms)
			return TIMEOUT;
		usleep(5000);
	}
	FILE *file = fopen(place("xids"), "r");
	int card = 0, code = 0;
	fseek(file, heard, SEEK_SET);
	if (fscanf(file, "%d %d\n", &card, &code) != 2)
		return 999;
	heard = ftell(file);
	fclose(file);
	*event = (struct event){.device = &cards[card], .type = 8, .data = (unsigned long long)code};
	return 0;
}
