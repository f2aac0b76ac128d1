/*
 * This process's view of the driver: is it initialised, which devices are
 * there, and the one lock under which all of its objects are used.
 */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H

#include "cuda_api.h"

#include "../state.h"
#include "engine.h"

#include <stdbool.h>
#include <stdint.h>

enum { DRIVER_DEVICES = 16 };

struct device {
	int ordinal;       /* what the program calls it */
	uint32_t card;     /* slot in the node */
	uint32_t instance; /* slot of the MIG slice in the card, or GPUSIM_NO_INSTANCE */
	struct engine *engine;
	struct gpusim_process *process; /* our line in the node's table; NULL without a context */
	uint32_t tenant;                /* its number */
	uint64_t sampled_ns;            /* when our use was last published, and how much it was */
	uint64_t sampled_served_ns;
	unsigned holders; /* contexts and loose memory that keep the line */
	struct context *primary;
	struct pool *default_pool;
	struct pool *pool; /* that cuMemAllocAsync takes from */
	struct graph_memory *graph_memory;
};

struct driver {
	struct gpusim_node *node;
	int cuda_version; /* 12090 */
	int count;
	struct device devices[DRIVER_DEVICES];
};

extern struct driver driver;
extern const int driver_newest_version; /* this library's list of names ends there */

/*
 * Each entry point of the driver begins with one of these. They return
 * CUDA_SUCCESS holding the process's lock, to be given back by driver_leave,
 * or an error without it. driver_enter_device asks for a device of that number,
 * driver_enter (context.h) for a current context.
 */
CUresult driver_enter_bare(void);
CUresult driver_enter_device(CUdevice ordinal, struct device **device);
CUresult driver_leave(CUresult result);
/* At start-up: what is called after each of them, without the lock. */
void driver_at_leave(void (*call)(void));

/* In between, for a wait: the lock is given to other threads while we sleep. */
void driver_doze(uint64_t virtual_ns);
/* The driver itself is busy for so long: no other call of the process gets in. */
void driver_stall(uint64_t virtual_ns);
/* A call that waits for room in a queue keeps the driver to itself, if the settings say so. */
void driver_hold(void);
void driver_release(void);
uint64_t driver_now_ns(void);
void driver_unlock(void);
void driver_lock(void);

/* Under the lock. */
struct device *driver_device(CUdevice ordinal);
const struct gpusim_card *device_card(const struct device *device);
/* The MIG slice that the device is, or NULL for a whole card. */
const struct gpusim_instance *device_instance(const struct device *device);
uint64_t device_total_bytes(const struct device *device);

/* devices.c: fills driver.devices as the environment allows. */
void driver_enumerate(struct driver *driver);

#endif
