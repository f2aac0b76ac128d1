/* The process table: who holds how much of which card, and who still lives. */
#include "state_internal.h"

#include <errno.h>
#include <pthread.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

/* Locked bytes lie far behind the file's end, one for each slot. */
#define LOCK_BASE ((off_t)1 << 40)

/* Random bytes that the kernel makes new at every exec(): tells two images of one pid apart. */
static uint64_t current_image(void)
{
	uint64_t image = 0;
	const void *random =
		(const void *)getauxval(AT_RANDOM); // NOLINT(performance-no-int-to-ptr)

	if (random)
		memcpy(&image, random, sizeof(image));
	return image;
}

uint64_t gpusim_current_pid_namespace(void)
{
	struct stat status;

	return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* Field 22 of /proc/self/stat; the name in field 2 may hold anything, even ")". */
static uint64_t current_start_ticks(void)
{
	char text[1024];
	FILE *file = fopen("/proc/self/stat", "re");
	size_t length = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

	if (file)
		(void)fclose(file);
	text[length] = '\0';
	const char *rest = strrchr(text, ')');
	/* The blank behind the name starts field 3. */
	for (unsigned field = 3; rest && field <= 22; field++)
		rest = strchr(rest + 1, ' ');
	return rest ? strtoull(rest, NULL, 10) : 0;
}

static void current_name(char *name, size_t bytes)
{
	ssize_t length = readlink("/proc/self/exe", name, bytes - 1);

	name[length > 0 ? (size_t)length : 0] = '\0';
}

static bool is_mine(const struct gpusim_process *process, uint64_t image)
{
	return process->used && process->pid == getpid() && process->image == image;
}

static struct flock slot_lock(const struct gpusim_node *node, const struct gpusim_process *process)
{
	return (struct flock){.l_type = F_WRLCK,
			      .l_whence = SEEK_SET,
			      .l_start = LOCK_BASE + (process - node->processes),
			      .l_len = 1};
}

/*
 * Who holds the slot's lock: 0 nobody (the process is dead), else its pid as
 * this pid namespace sees it, -1 when it lives in another one. POSIX locks do
 * not show their own holder, so ask is_mine first.
 */
static int32_t slot_holder(const struct gpusim_node *node, const struct gpusim_process *process)
{
	int descriptor = gpusim_descriptor(node);
	struct flock lock = slot_lock(node, process);

	if (descriptor < 0 || fcntl(descriptor, F_GETLK, &lock) != 0)
		return -1;
	if (lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid > 0 ? lock.l_pid : -1;
}

static void fill_slot(struct gpusim_process *process, uint64_t image)
{
	memset(process, 0, sizeof(*process));
	process->pid = getpid();
	process->start_ticks = current_start_ticks();
	process->pid_namespace = gpusim_current_pid_namespace();
	process->image = image;
	current_name(process->name, sizeof(process->name));
}

static struct gpusim_process *free_slot(struct gpusim_node *node)
{
	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
			if (!node->processes[slot].used)
				return &node->processes[slot];
		}
		if (gpusim_processes_reap(node) == 0)
			break;
	}
	return NULL;
}

struct gpusim_process *gpusim_process_claim(struct gpusim_node *node, uint32_t card,
					    uint32_t gpu_instance, uint32_t compute_instance,
					    uint32_t kind)
{
	uint64_t image = current_image();

	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		struct gpusim_process *process = &node->processes[slot];
		if (is_mine(process, image) && process->card == card &&
		    process->gpu_instance == gpu_instance &&
		    process->compute_instance == compute_instance && process->kind == kind)
			return process;
	}
	struct gpusim_process *process = free_slot(node);
	if (!process)
		return NULL;
	struct flock lock = slot_lock(node, process);
	if (fcntl(gpusim_descriptor(node), F_SETLK, &lock) != 0)
		return NULL;
	fill_slot(process, image);
	process->card = card;
	process->gpu_instance = gpu_instance;
	process->compute_instance = compute_instance;
	process->kind = kind;
	process->used = 1;
	return process;
}

void gpusim_process_release(struct gpusim_node *node, struct gpusim_process *process)
{
	struct flock lock = slot_lock(node, process);

	lock.l_type = F_UNLCK;
	process->used = 0;
	(void)fcntl(gpusim_descriptor(node), F_SETLK, &lock);
}

unsigned gpusim_processes_reap(struct gpusim_node *node)
{
	uint64_t image = current_image();
	unsigned freed = 0;

	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		struct gpusim_process *process = &node->processes[slot];
		if (!process->used || is_mine(process, image) || slot_holder(node, process) != 0)
			continue;
		process->used = 0;
		freed++;
	}
	return freed;
}

/* "565.57.01" against three numbers. */
static bool driver_is(const struct gpusim_node *node, const unsigned long least[3])
{
	const char *text = node->driver_version;
	char *end;

	for (unsigned i = 0; i < 3; i++) {
		unsigned long number = strtoul(text, &end, 10);

		if (number != least[i])
			return number > least[i];
		text = end + (*end == '.');
	}
	return true;
}

static bool is_on_the_host(const struct gpusim_node *node)
{
	return !node->host_pid_namespace ||
	       gpusim_current_pid_namespace() == node->host_pid_namespace;
}

static const char *wish(void)
{
	return getenv("GPU_SIMULATOR_NVML_PIDS"); // NOLINT(concurrency-mt-unsafe)
}

enum gpusim_told gpusim_told(const struct gpusim_node *node)
{
	static const unsigned long with_pids[3] = {535, 113, 1}, with_memory[3] = {565, 57, 1};
	static const char *const words[] = {[GPUSIM_TOLD_ALL] = "known",
					    [GPUSIM_TOLD_INNER] = "inner",
					    [GPUSIM_TOLD_NO_SIZE] = "unsized",
					    [GPUSIM_TOLD_NOTHING] = "none"};

	for (unsigned i = 0; wish() && i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(wish(), words[i]) == 0)
			return (enum gpusim_told)i;
	}
	if (is_on_the_host(node) || driver_is(node, with_memory))
		return GPUSIM_TOLD_ALL;
	return driver_is(node, with_pids) ? GPUSIM_TOLD_NO_SIZE : GPUSIM_TOLD_NOTHING;
}

bool gpusim_tells_utilisation(const struct gpusim_node *node)
{
	static const unsigned long least[3] = {570, 148, 8};
	const enum gpusim_told told = gpusim_told(node);

	return told == GPUSIM_TOLD_ALL || told == GPUSIM_TOLD_INNER
		       ? wish() || is_on_the_host(node) || driver_is(node, least)
		       : false;
}

int32_t gpusim_process_visible_pid(const struct gpusim_node *node,
				   const struct gpusim_process *process)
{
	if (gpusim_told(node) == GPUSIM_TOLD_NOTHING)
		return 0;
	if (is_mine(process, current_image()))
		return process->pid;
	int32_t holder = slot_holder(node, process);

	if (holder > 0)
		return holder;
	return gpusim_told(node) == GPUSIM_TOLD_INNER ? process->pid : 0;
}

static uint64_t sum_bytes(struct gpusim_node *node, uint32_t card, uint32_t gpu_instance)
{
	uint64_t bytes = 0;

	gpusim_processes_reap(node);
	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &node->processes[slot];
		if (process->used && process->card == card &&
		    (gpu_instance == GPUSIM_NO_INSTANCE || process->gpu_instance == gpu_instance))
			bytes += process->used_bytes;
	}
	return bytes;
}

uint64_t gpusim_card_used_bytes(struct gpusim_node *node, uint32_t card)
{
	const struct gpusim_card *described = &node->cards[card];

	return described->memory_reserved_bytes + described->memory_base_bytes +
	       sum_bytes(node, card, GPUSIM_NO_INSTANCE);
}

uint64_t gpusim_instance_used_bytes(struct gpusim_node *node, uint32_t card, uint32_t gpu_instance)
{
	return sum_bytes(node, card, gpu_instance);
}

void gpusim_lock(struct gpusim_node *node)
{
	if (pthread_mutex_lock(&node->mutex) == EOWNERDEAD) {
		/* Every update is one word or is redone by the reaper: nothing to roll back. */
		pthread_mutex_consistent(&node->mutex);
		gpusim_processes_reap(node);
	}
}

void gpusim_unlock(struct gpusim_node *node)
{
	pthread_mutex_unlock(&node->mutex);
}
