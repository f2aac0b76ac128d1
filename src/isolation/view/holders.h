/* Who of this container holds memory of a card. */
#pragma once

#include "books/region.h"

#include <stdint.h>

struct holder {
	uint32_t pid;   /* as this container sees it */
	uint64_t bytes; /* asked for and overhead */
};

/* Any thread. Who holds memory on a card, without the dead; returns how many. */
unsigned holders_of(int card, struct holder holders[REGION_SLOTS]);
