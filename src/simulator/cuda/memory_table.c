/* All allocations of the process, by address. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

static struct {
	struct memory **at; /* by address, ascending */
	size_t count;
	size_t room;
} table;

/* The place of the first that begins after `address`. */
static size_t place_after(uint64_t address)
{
	size_t low = 0;
	size_t high = table.count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (table.at[middle]->address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool memory_insert(struct memory *memory)
{
	size_t place = place_after(memory->address);

	if (table.count == table.room) {
		size_t room = table.room ? table.room * 2 : 64;
		struct memory **grown = realloc(table.at, room * sizeof(struct memory *));

		if (!grown)
			return false;
		table.at = grown;
		table.room = room;
	}
	memmove(&table.at[place + 1], &table.at[place],
		(table.count - place) * sizeof(struct memory *));
	table.at[place] = memory;
	table.count++;
	return true;
}

void memory_remove(struct memory *memory)
{
	size_t place = place_after(memory->address);

	while (place > 0 && table.at[place - 1] != memory)
		place--;
	if (place == 0)
		return;
	memmove(&table.at[place - 1], &table.at[place],
		(table.count - place) * sizeof(struct memory *));
	table.count--;
}

struct memory *memory_around(uint64_t address)
{
	size_t place = place_after(address);
	struct memory *memory = place ? table.at[place - 1] : NULL;

	return memory && address - memory->address < (memory->bytes ? memory->bytes : 1) ? memory
											 : NULL;
}

struct memory *memory_at(uint64_t address)
{
	struct memory *memory = memory_around(address);

	return memory && memory->address == address ? memory : NULL;
}

struct memory *memory_any_of(const struct context *context, const struct pool *pool)
{
	for (size_t place = table.count; place-- > 0;) {
		const struct memory *memory = table.at[place];

		if ((context && memory->context == context) || (pool && memory->pool == pool))
			return table.at[place];
	}
	return NULL;
}
