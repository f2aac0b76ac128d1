/* Asking the real NVML what a card or this process holds; see books/nvml.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. False: cannot be known. */

/* Bytes that NVML holds against the process with our pid; 0 when it is not listed. */
bool nvml_own_listing(int card, uint64_t *bytes);

/*
 * Is NVML there, and our pid the one that it means by it? In a pid namespace it may be some
 * other process's on the host: known only once our first context made it
 * appear, and then for all processes of the container. Tell what was seen
 * before and after one was made.
 */
bool nvml_knows_pid(void);
void nvml_learn(bool was_listed, bool is_listed);
