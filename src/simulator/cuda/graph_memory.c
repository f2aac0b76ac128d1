#include "graph_memory.h"

#include "ledger.h"
#include "physical.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

/* Live memory is marked in its flags. */
enum { LIVE = 1 };

uint64_t graph_memory_rounded(uint64_t bytes)
{
	const uint64_t block =
		setting_number("GPU_SIMULATOR_GRAPH_BLOCK_BYTES", physical_granularity());

	return (bytes + block - 1) / block * block;
}

static struct graph_memory *of_device(struct device *device)
{
	if (!device->graph_memory)
		device->graph_memory = calloc(1, sizeof(*device->graph_memory));
	return device->graph_memory;
}

CUresult graph_memory_new(struct device *device, uint64_t bytes, struct memory **memory)
{
	CUresult result = of_device(device)
				  ? memory_map_uncharged(device, bytes, MEMORY_GRAPH, memory)
				  : CUDA_ERROR_OUT_OF_MEMORY;

	if (result == CUDA_SUCCESS)
		graph_memory_keep(*memory);
	return result;
}

void graph_memory_keep(struct memory *memory)
{
	memory->references++;
}

void graph_memory_drop(struct memory *memory)
{
	memory->references--;
	if (memory->references == 0 && !graph_memory_is_live(memory))
		memory_release(memory);
}

/* The line in the node's table lives while anything is reserved: no context is needed for it. */
static bool grow(struct device *device, struct graph_memory *room, uint64_t needed)
{
	if (!room->reserved_bytes && !ledger_hold(device))
		return false;
	if (!ledger_take(device, needed - room->reserved_bytes)) {
		if (!room->reserved_bytes)
			ledger_let_go(device);
		return false;
	}
	room->reserved_bytes = needed;
	if (needed > room->reserved_high)
		room->reserved_high = needed;
	return true;
}

static void shrink(struct device *device, struct graph_memory *room, uint64_t keep_bytes)
{
	if (room->reserved_bytes <= keep_bytes)
		return;
	ledger_give(device, room->reserved_bytes - keep_bytes);
	room->reserved_bytes = keep_bytes;
	if (!keep_bytes)
		ledger_let_go(device);
}

static bool claim_one(struct device *device, struct graph_claim *claim)
{
	struct graph_memory *room = claim->bytes ? of_device(device) : NULL;

	if (!room || (claim->is_held && claim->trims == room->trims))
		return true;
	const uint64_t needed = room->claimed_bytes + claim->bytes;

	if (needed > room->reserved_bytes && !grow(device, room, needed))
		return false;
	room->claimed_bytes = needed;
	claim->is_held = true;
	claim->trims = room->trims;
	return true;
}

CUresult graph_memory_claim(struct graph_claims *claims)
{
	for (int i = 0; i < driver.count; i++) {
		if (!claim_one(&driver.devices[i], &claims->of[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

void graph_memory_unclaim(struct graph_claims *claims)
{
	for (int i = 0; i < driver.count; i++) {
		struct graph_claim *claim = &claims->of[i];
		struct graph_memory *room = claim->is_held ? of_device(&driver.devices[i]) : NULL;

		if (room && claim->trims == room->trims)
			room->claimed_bytes -= claim->bytes;
		claim->is_held = false;
	}
}

void graph_memory_drop_all(struct device *device)
{
	struct graph_memory *room = device->graph_memory;

	if (!room)
		return;
	shrink(device, room, 0);
	room->claimed_bytes = 0;
	room->trims++;
}

bool graph_memory_is_live(const struct memory *memory)
{
	return memory->flags & LIVE;
}

CUresult graph_memory_begin(struct memory *memory)
{
	struct graph_memory *room = of_device(memory->device);

	memory->flags |= LIVE;
	room->used_bytes += graph_memory_rounded(memory->bytes);
	if (room->used_bytes > room->used_high)
		room->used_high = room->used_bytes;
	return CUDA_SUCCESS;
}

CUresult graph_memory_end(struct memory *memory)
{
	if (!graph_memory_is_live(memory))
		return CUDA_ERROR_INVALID_VALUE;
	memory->flags &= ~(unsigned)LIVE;
	of_device(memory->device)->used_bytes -= graph_memory_rounded(memory->bytes);
	if (memory->references == 0)
		memory_release(memory);
	return CUDA_SUCCESS;
}

/* What no graph uses just now goes back to the card. */
CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_memory *room = of_device(device);
	shrink(device, room, room->used_bytes);
	room->claimed_bytes = room->used_bytes;
	room->trims++;
	return driver_leave(CUDA_SUCCESS);
}

static uint64_t *amount(struct graph_memory *room, CUgraphMem_attribute attribute)
{
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
		return &room->used_bytes;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		return &room->used_high;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		return &room->reserved_bytes;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		return &room->reserved_high;
	default:
		return NULL;
	}
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	const uint64_t *found = amount(of_device(device), attribute);
	if (!found || !value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(value, found, sizeof(*found));
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
	uint64_t number;
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	struct graph_memory *room = of_device(device);
	if (!value || (memcpy(&number, value, sizeof(number)), number))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		room->used_high = room->used_bytes;
	else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		room->reserved_high = room->reserved_bytes;
	else
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(CUDA_SUCCESS);
}
