#include "context.h"

#include "clock.h"
#include "ledger.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

#define MIB (1024ull * 1024ull)

enum { STACK_DEPTH = 32 };

static _Thread_local struct {
	struct context *at[STACK_DEPTH];
	unsigned depth;
} stack;

struct context *stack_top(void)
{
	return stack.depth ? stack.at[stack.depth - 1] : NULL;
}

bool stack_push(struct context *context)
{
	if (stack.depth == STACK_DEPTH)
		return false;
	stack.at[stack.depth++] = context;
	return true;
}

struct context *stack_pop(void)
{
	return stack.depth ? stack.at[--stack.depth] : NULL;
}

void stack_set_top(struct context *context)
{
	if (stack.depth)
		stack.depth--;
	if (context)
		stack_push(context);
}

struct context *context_of(CUcontext handle)
{
	struct context *context = (struct context *)(void *)handle;

	return context && context->magic == CONTEXT_MAGIC && context->is_alive ? context : NULL;
}

CUresult context_current(struct context **context)
{
	*context = stack_top();
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if ((*context)->home && (*context)->is_alive)
		*context = (*context)->home;
	return (*context)->is_alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Fallen off the bus, or pulled. */
static bool is_gone(const struct gpusim_card *card)
{
	return card->lost || !card->present;
}

CUresult driver_enter(struct context **context)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	result = context_current(context);
	if (result == CUDA_SUCCESS && is_gone(device_card((*context)->device)))
		result = CUDA_ERROR_UNKNOWN;
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUresult driver_enter_launch(struct context **context)
{
	clock_pay(driver.node, COST_LAUNCH_NS);
	return driver_enter(context);
}

struct context *context_green(const struct context *context)
{
	struct context *top = stack_top();

	return top && top->home == context ? top : NULL;
}

/*
 * About 3 MiB a multiprocessor, as published for cards from 34 (107 MiB) to
 * 188 of them (555 MiB); GPU_SIMULATOR_CONTEXT_MIB sets it outright.
 */
uint64_t context_cost_bytes(const struct device *device)
{
	const struct gpusim_instance *instance = device_instance(device);
	uint64_t multiprocessors = device_card(device)->multiprocessors;

	if (instance && instance->multiprocessors)
		multiprocessors = instance->multiprocessors;
	return setting_number("GPU_SIMULATOR_CONTEXT_MIB",
			      (multiprocessors ? multiprocessors : 80) * 3) *
	       MIB;
}

static void set_default_limits(struct context *context)
{
	context->limits[CU_LIMIT_STACK_SIZE] = 1024;
	context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 * MIB;
	context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
	context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

static struct context *new_context(struct device *device, unsigned flags)
{
	struct context *made = calloc(1, sizeof(*made));

	if (made)
		*made = (struct context){
			.magic = CONTEXT_MAGIC,
			.flags = flags,
			.api_version = 3020,
			.device = device,
		};
	return made;
}

CUresult context_revive(struct context *context)
{
	static uint64_t ids;
	uint64_t cost = context_cost_bytes(context->device);

	if (!ledger_is_available(context->device))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (!ledger_hold(context->device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!ledger_take(context->device, cost)) {
		ledger_let_go(context->device);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context->id = ++ids;
	context->cost_bytes = cost;
	context->references = 0;
	context->is_alive = true;
	set_default_limits(context);
	return CUDA_SUCCESS;
}

CUresult context_open(struct device *device, unsigned flags, struct context **context)
{
	CUresult result;

	*context = new_context(device, flags);
	if (!*context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = context_revive(*context);
	if (result != CUDA_SUCCESS)
		free(*context);
	return result;
}

struct context *context_primary(struct device *device)
{
	if (!device->primary) {
		device->primary = new_context(device, 0);
		if (device->primary)
			device->primary->is_primary = true;
	}
	return device->primary;
}
