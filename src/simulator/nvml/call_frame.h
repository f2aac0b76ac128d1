/*
 * What every function of the simulated libnvidia-ml does first and last: wait
 * out a hang, look whether the library is initialised and the driver old enough
 * to lack the function, find the card behind the handle, take the node's lock.
 */
#ifndef GPU_SIMULATOR_NVML_CALL_FRAME_H
#define GPU_SIMULATOR_NVML_CALL_FRAME_H

#include "state.h"

/* Old entry points keep their own names and structs. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

/* One call on a card, or on a MIG slice of it, while the node is locked. */
struct call {
	struct gpusim_node *node;
	struct gpusim_card *card;
	uint32_t slot;
	struct gpusim_instance *instance; /* NULL: the whole card */
};

/* Start a call that names no card. On NVML_SUCCESS the node is locked: end it with `leave`. */
nvmlReturn_t enter(struct call *call, const char *function);
/* Start a call on a card or a GPU instance, which need not have a compute instance. */
nvmlReturn_t enter_place(struct call *call, nvmlDevice_t device, const char *function);
/* Start a call on a card or a MIG slice. */
nvmlReturn_t enter_device(struct call *call, nvmlDevice_t device, const char *function);
/* The same, refusing MIG slices: for what only a whole card has. */
nvmlReturn_t enter_card(struct call *call, nvmlDevice_t device, const char *function);
/* Unlock and hand the result on. */
nvmlReturn_t leave(struct call *call, nvmlReturn_t result);

/* NVML_SUCCESS when initialised and known to this driver; waits out a hang, takes no lock. */
nvmlReturn_t ready(struct gpusim_node **node, const char *function);

/* The cards as they stood when the library was initialised; returns how many. */
unsigned cards_at_start(uint32_t slots[GPUSIM_CARDS]);

/* Handles are addresses of static objects: never made, never freed, never read by others. */
nvmlDevice_t device_handle(uint32_t slot);
nvmlDevice_t instance_handle(uint32_t slot, unsigned instance);
/* false when the address is none of our handles; instance is GPUSIM_INSTANCES for a whole card. */
bool handle_place(nvmlDevice_t device, uint32_t *slot, unsigned *instance);

/* Compute slices of a GPU instance, and how NVML numbers a profile of so many. */
unsigned gpu_slices(const struct gpusim_instance *instance);
unsigned compute_profile(unsigned slices);
/* What a card can be cut into by the driver's number of the profile; NULL: not so. */
const struct gpusim_mig_profile *mig_profile(const struct gpusim_card *card, unsigned id);

/* Copy text out, or NVML_ERROR_INSUFFICIENT_SIZE. */
nvmlReturn_t give_text(char *target, unsigned length, const char *text);
nvmlReturn_t give_number(unsigned *target, unsigned number);

/* CLOCK_MONOTONIC; and the time so long ago as the microseconds since 1970 that NVML speaks. */
uint64_t now_ns(void);
uint64_t wall_microseconds(uint64_t age_ns);
/* How old a sample is, by the clock that it was taken by. */
uint64_t sample_age_ns(const struct gpusim_node *node, uint64_t seen_ns);

#endif
