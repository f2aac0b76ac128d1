/*
 * Making and changing a simulated node from outside: exported by
 * libnvidia-ml.so.1 with the gpusim_ prefix, called by Python through ctypes.
 * Text is "name=value" lines with the names of fields.def. Each function
 * returns 0, or a negative errno with the reason in gpusim_error().
 */
#ifndef GPU_SIMULATOR_CONTROL_H
#define GPU_SIMULATOR_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#define GPUSIM_CONTROL __attribute__((visibility("default")))

/* Why the last call of this thread failed. */
GPUSIM_CONTROL const char *gpusim_error(void);

/* Write a new node and put it at the path in one step; what stood there is replaced. */
GPUSIM_CONTROL int gpusim_create(const char *path, const char *lines);

/* Change fields while processes use the node: all lines or, when one is wrong, none. */
GPUSIM_CONTROL int gpusim_set(const char *path, const char *lines);

/*
 * Report an XID on a card, or on its MIG device of that index (GPUSIM_NO_INSTANCE: the card),
 * to everybody who waits for events.
 */
GPUSIM_CONTROL int gpusim_xid(const char *path, uint32_t card, uint32_t instance, uint64_t xid);

/* The node as lines, fields that are zero left out; -ENOSPC when it does not fit. */
GPUSIM_CONTROL int gpusim_describe(const char *path, char *lines, size_t bytes);

/* Differs once the node that a driver opened now would find is another one; 0: there is none. */
GPUSIM_CONTROL uint64_t gpusim_generation(void);

/*
 * This process holds `bytes` of a card (GPUSIM_NO_INSTANCE, or the GPU instance
 * they are taken from) until it asks for another amount, ends or calls exec().
 */
GPUSIM_CONTROL int gpusim_occupy(const char *path, uint32_t card, uint32_t gpu_instance,
				 uint64_t bytes);

/*
 * Copies a driver library, in one step, without what came after that driver
 * ("535.309.01") and that CUDA (12020).
 */
GPUSIM_CONTROL int gpusim_put_library(const char *source, const char *target,
				      const char *driver_version, unsigned cuda_version);

/*
 * Stands in for a process that dies at the worst moment: takes the node's lock
 * and never gives it back. For tests.
 */
GPUSIM_CONTROL int gpusim_hold_lock(const char *path);

#endif
