/* Asking the real NVML what a card or this process holds; see probe.c. */
#ifndef GPUSLICE_PROBE_H
#define GPUSLICE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. False: cannot be known. */

/* Bytes in use on the whole card. */
bool probe_card_used(int card, uint64_t *bytes);

/* Bytes that NVML holds against the process with our pid; 0 when it is not listed. */
bool probe_own_listing(int card, uint64_t *bytes);

enum { PROBE_SHARES = 128 };

/* A process's percentage of the card's time in the last samples. */
struct probe_share {
	uint32_t pid;
	uint32_t percent;
};

/* Returns how many; 0 also when it cannot be known. */
unsigned probe_shares(int card, struct probe_share shares[PROBE_SHARES]);

/*
 * Is NVML there, and our pid the one that it means by it? In a pid namespace it may be some
 * other process's on the host: known only once our first context made it
 * appear, and then for all processes of the container. Tell what was seen
 * before and after one was made.
 */
bool probe_knows_pid(void);
void probe_learn(bool was_listed, bool is_listed);

#endif
