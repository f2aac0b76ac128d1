/*
 * nvidia-smi's default table does not call NVML's process functions but a
 * private table that nvmlInternalGetExportTable hands out: an array whose entry
 * 0 is its size in bytes, the others functions. In the one of driver 535 the
 * entries 213, 214 and 215 list compute, graphics and MPS processes (seen by
 * answering nvidia-smi and looking at what it printed). We hand out a copy with
 * these three replaced. Tables of other drivers are numbered differently and go
 * out as they are: inside a pid namespace the driver lists only what can be
 * seen there.
 */
#include "slice/process.h"
#include "view/nvml_entry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ENTRY_COMPUTE = 213, ENTRY_GRAPHICS = 214, ENTRY_MPS = 215, TABLE_MOST_BYTES = 1 << 16 };

/* What the entries fill in: the public struct and a name. */
struct named_process {
	nvmlProcessDetail_v1_t process;
	char name[4096];
};

static const unsigned char known_id[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
					   0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

/* The executable; of another user's process at least its short name. */
static void name_of(uint32_t pid, char *name, size_t bytes)
{
	char path[40];

	(void)snprintf(path, sizeof(path), "/proc/%u/exe", pid);
	const ssize_t length = readlink(path, name, bytes - 1);

	if (length > 0) {
		name[length] = 0;
		return;
	}
	(void)snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	FILE *file = fopen(path, "re");

	if (!file || !fgets(name, (int)bytes, file))
		(void)snprintf(name, bytes, "-");
	name[strcspn(name, "\n")] = 0;
	if (file)
		(void)fclose(file);
}

static nvmlReturn_t list(nvmlDevice_t device, bool is_compute, unsigned *count,
			 struct named_process *processes)
{
	if (nvml_enter() != ENTRY_OPEN)
		return NVML_ERROR_NO_PERMISSION;
	if (count && !processes)
		*count = 0;
	const nvmlReturn_t result =
		processes_list(device, is_compute, count, processes, sizeof(*processes));

	for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
		name_of(processes[i].process.pid, processes[i].name, sizeof(processes[i].name));
	return result;
}

static nvmlReturn_t list_compute(nvmlDevice_t device, unsigned *count,
				 struct named_process *processes)
{
	return list(device, true, count, processes);
}

static nvmlReturn_t list_nobody(nvmlDevice_t device, unsigned *count,
				struct named_process *processes)
{
	return list(device, false, count, processes);
}

static bool is_numbered_as_known(void)
{
	char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];

	return nvml.nvmlSystemGetDriverVersion &&
	       nvml.nvmlSystemGetDriverVersion(version, sizeof(version)) == NVML_SUCCESS &&
	       strncmp(version, "535.", 4) == 0;
}

/* The driver's table with these lists in it; NULL when it looks different. */
static const void *copy_of(const uintptr_t *table)
{
	const uintptr_t bytes = table[0];

	if (bytes > TABLE_MOST_BYTES || bytes < (ENTRY_MPS + 1) * sizeof(*table))
		return NULL;
	for (unsigned entry = ENTRY_COMPUTE; entry <= ENTRY_MPS; entry++)
		if (!driver_owns((const void *)table[entry])) // NOLINT(performance-no-int-to-ptr)
			return NULL;
	uintptr_t *copy =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		return NULL;
	memcpy(copy, table, bytes);
	copy[ENTRY_COMPUTE] = (uintptr_t)list_compute;
	copy[ENTRY_GRAPHICS] = (uintptr_t)list_nobody;
	copy[ENTRY_MPS] = (uintptr_t)list_nobody;
	mprotect(copy, bytes, PROT_READ);
	return copy;
}

LOCK_OF_PROCESS(copying)

/* Any thread; the driver's table is one for the process, and so is our copy. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
	static const void *copy;

	NVML_ENTER(nvmlInternalGetExportTable, table, id);
	const nvmlReturn_t result = nvml.nvmlInternalGetExportTable(table, id);

	if (result != NVML_SUCCESS || !*table || memcmp(id, known_id, sizeof(known_id)) != 0 ||
	    !is_numbered_as_known())
		return result;
	process_in_children(copying_in_child);
	pthread_mutex_lock(&copying);
	if (!copy)
		copy = copy_of(*table);
	if (copy)
		*table = copy;
	pthread_mutex_unlock(&copying);
	return result;
}
