/* Asking the real NVML what a card or this process holds; see books/nvml.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread. False: cannot be known. */

/* Bytes that NVML lists with this process's pid; 0 when it is not listed. */
bool nvml_own_listing(int card, uint64_t *bytes);

/*
 * Is NVML there, and does it list this process by its pid? In a pid namespace the number may be
 * another process's on the host. It is trusted, for all processes of the container, once the first
 * context of one made it appear: nvml_learn is told what was seen before and after.
 */
bool nvml_knows_pid(void);
void nvml_learn(bool was_listed, bool is_listed);
