#include "copy.h"

#include "memory.h"

#include <string.h>

#define BUS_BYTES_PER_US 12000u
#define CARD_BYTES_PER_US 500000u
#define BEGIN_NS 2000u

struct copy copy_linear(uint64_t to, uint64_t from, uint64_t bytes)
{
	return (struct copy){.to = {.address = to},
			     .from = {.address = from},
			     .width_bytes = bytes,
			     .height = 1,
			     .depth = 1};
}

static uint64_t total_bytes(const struct copy *copy)
{
	return copy->width_bytes * copy->height * copy->depth;
}

static void fill_row(char *row, const struct copy *copy)
{
	for (uint64_t i = 0; i + copy->element_bytes <= copy->width_bytes; i += copy->element_bytes)
		memcpy(row + i, &copy->value, copy->element_bytes);
}

void copy_run(const struct copy *copy)
{
	if (total_bytes(copy) > MEMORY_BACKED_BYTES)
		return;
	for (uint64_t plane = 0; plane < copy->depth; plane++) {
		for (uint64_t row = 0; row < copy->height; row++) {
			char *to = (char *)(uintptr_t)(copy->to.address +
						       plane * copy->to.plane_bytes +
						       row * copy->to.row_bytes);
			const char *from =
				(const char *)(uintptr_t)(copy->from.address +
							  plane * copy->from.plane_bytes +
							  row * copy->from.row_bytes);

			if (copy->is_fill)
				fill_row(to, copy);
			else
				memmove(to, from, copy->width_bytes);
		}
	}
}

static bool is_on_card(uint64_t address)
{
	const struct memory *memory = memory_around(address);

	return memory && memory->kind != MEMORY_HOST && memory->kind != MEMORY_HOST_REGISTERED;
}

enum engine_bus copy_bus(const struct copy *copy)
{
	if (copy->is_fill)
		return ENGINE_ON_CARD;
	if (!is_on_card(copy->to.address))
		return ENGINE_TO_HOST;
	return is_on_card(copy->from.address) ? ENGINE_ON_CARD : ENGINE_TO_CARD;
}

uint64_t copy_ns(const struct copy *copy)
{
	const bool stays = copy_bus(copy) == ENGINE_ON_CARD;

	return BEGIN_NS + total_bytes(copy) * 1000 / (stays ? CARD_BYTES_PER_US : BUS_BYTES_PER_US);
}
