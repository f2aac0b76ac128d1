/*
 * The private table of nvidia-smi 535: nvmlInternalGetExportTable hands out an
 * array whose entry 0 is its size in bytes and whose other entries are
 * functions. What is known of them was seen by answering nvidia-smi and looking
 * at what it printed: entry 72 is taken for the brand, as dmon and pmon work on a
 * card for which it is not 0; 81 gives the handle of an index; 145 is asked by pmon
 * for utilisation since a time, in a form that we do not know; 213, 214 and 215
 * are the lists of compute, graphics and MPS processes. Every other one answers
 * success and, when it is asked of one of our handles and given a place for the
 * answer, "none of these".
 */
#include "call_frame.h"
#include "processes.h"

#include <string.h>

#define TABLE_ENTRIES (0x1000u / sizeof(void *))
#define ENTRY_BRAND 72u
#define ENTRY_HANDLE_BY_INDEX 81u
#define ENTRY_PROCESS_UTILIZATION 145u
#define ENTRY_COMPUTE_PROCESSES 213u
#define ENTRY_GRAPHICS_PROCESSES 214u
#define ENTRY_MPS_PROCESSES 215u

/* No process has memory here: what is smaller is a number, not a place for an answer. */
#define FIRST_ADDRESS 0x10000u

typedef nvmlReturn_t (*entry_function)(void *first, void *second, void *third);

static const uint8_t known_table[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
					0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

static union entry {
	uintptr_t number;
	entry_function function;
} table[TABLE_ENTRIES];

nvmlReturn_t nvmlInternalGetExportTable(const void **exported, const void *id);

static nvmlReturn_t any_entry(void *first, void *second, void *third)
{
	uint32_t slot;
	unsigned instance;

	(void)third;
	if (!handle_place(first, &slot, &instance))
		return NVML_SUCCESS;
	if ((uintptr_t)second < FIRST_ADDRESS)
		return NVML_ERROR_NOT_SUPPORTED;
	*(unsigned *)second = 0;
	return NVML_SUCCESS;
}

static nvmlReturn_t compute_processes(void *device, void *count, void *entries)
{
	return list_named_processes(device, GPUSIM_PROCESS_COMPUTE, count, entries);
}

static nvmlReturn_t graphics_processes(void *device, void *count, void *entries)
{
	return list_named_processes(device, GPUSIM_PROCESS_GRAPHICS, count, entries);
}

static nvmlReturn_t mps_processes(void *device, void *count, void *entries)
{
	return list_named_processes(device, GPUSIM_PROCESS_MPS, count, entries);
}

static nvmlReturn_t brand(void *device, void *brand, void *third)
{
	(void)third;
	return nvmlDeviceGetBrand(device, brand);
}

/* pmon shows a dash. */
static nvmlReturn_t no_samples(void *device, void *since, void *third)
{
	(void)device;
	(void)since;
	(void)third;
	return NVML_ERROR_NOT_FOUND;
}

/* The index arrives where others take a pointer. */
static nvmlReturn_t handle_by_index(void *first, void *second, void *third)
{
	(void)third;
	return nvmlDeviceGetHandleByIndex_v2((unsigned)(uintptr_t)first, second);
}

static void fill_table(void)
{
	table[0].number = sizeof(table);
	for (unsigned i = 1; i < TABLE_ENTRIES; i++)
		table[i].function = any_entry;
	table[ENTRY_BRAND].function = brand;
	table[ENTRY_PROCESS_UTILIZATION].function = no_samples;
	table[ENTRY_HANDLE_BY_INDEX].function = handle_by_index;
	table[ENTRY_COMPUTE_PROCESSES].function = compute_processes;
	table[ENTRY_GRAPHICS_PROCESSES].function = graphics_processes;
	table[ENTRY_MPS_PROCESSES].function = mps_processes;
}

__attribute__((visibility("default"))) nvmlReturn_t
nvmlInternalGetExportTable(const void **exported, const void *id)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (!exported || !id)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memcmp(id, known_table, sizeof(known_table)) != 0)
		return NVML_ERROR_NOT_FOUND;
	pthread_once(&once, fill_table);
	*exported = table;
	return NVML_SUCCESS;
}
