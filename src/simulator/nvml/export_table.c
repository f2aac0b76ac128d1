/*
 * The private table of nvidia-smi 535: nvmlInternalGetExportTable hands out an
 * array whose entry 0 is its size in bytes and whose other entries are
 * functions. Entry 81 gives the handle of an index; every other one answers
 * success and, when its first argument is one of our handles, "none of these"
 * in its second, which nvidia-smi reads as an empty list.
 */
#include "library.h"

#include <string.h>

#define TABLE_ENTRIES (0x1000u / sizeof(void *))
#define ENTRY_HANDLE_BY_INDEX 81u

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
	if (second && handle_place(first, &slot, &instance))
		*(unsigned *)second = 0;
	return NVML_SUCCESS;
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
	table[ENTRY_HANDLE_BY_INDEX].function = handle_by_index;
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
