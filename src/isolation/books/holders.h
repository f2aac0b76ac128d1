/* Which processes of this container hold memory on a card; see books/holders.c. */
#pragma once

#include "books/region.h"

#include <stdint.h>

struct holder {
	uint32_t pid;   /* as this container sees it */
	uint64_t bytes; /* asked for and overhead */
};

/* Fills at most REGION_SLOTS; returns how many. The dead are left out. Any thread. */
unsigned holders_of(int card, struct holder holders[REGION_SLOTS]);
