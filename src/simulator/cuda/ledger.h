/*
 * What this process holds of a card's memory, booked in the node's process
 * table, where nvidia-smi reads it. Out of memory here is the card's or, from
 * driver 615 on, a cgroup's; a slice's is libgpuslice's matter.
 */
#ifndef GPUSIM_LEDGER_H
#define GPUSIM_LEDGER_H

#include "driver.h"

/* All under the process's lock. Other processes may do the same at the same time. */

/* Whether the card's compute mode lets this process begin; reaps dead processes first. */
bool ledger_is_available(const struct device *device);

/*
 * Our line in the table: there from the first hold of a device (a context, or
 * memory outside of any) to the last. False: the table is full, or the card is not available.
 */
bool ledger_hold(struct device *device);
void ledger_let_go(struct device *device);

/*
 * Takes bytes if the card has them and the process's cgroup allows them; looks for dead holders
 * before it refuses. Managed memory is not counted by cgroup.
 */
bool ledger_take(struct device *device, uint64_t bytes);
void ledger_give(struct device *device, uint64_t bytes);
bool ledger_take_managed(struct device *device, uint64_t bytes);
void ledger_give_managed(struct device *device, uint64_t bytes);
/* Memory of other processes that this one came to have, or (negative) no longer has. */
void ledger_import(struct device *device, int64_t bytes);

/* Frees what dead processes held of the device. True when there were any. */
bool ledger_reap(struct device *device);

/* Of the card, or of the process's own cgroup where that has a limit; `total` likewise. */
uint64_t ledger_free_bytes(struct device *device, uint64_t *total);

/*
 * Writes the card's recent use to where nvidia-smi reads it, at most every 20 ms
 * by the clock of samples, and buries the work of dead processes. Call it when there is time.
 */
void ledger_publish(struct device *device);

#endif
