/* Which devices a program sees, in which order: CUDA_VISIBLE_DEVICES over NVIDIA_VISIBLE_DEVICES.
 */
#include "driver.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = GPUSIM_CARDS * (GPUSIM_INSTANCES + 1) };

struct candidates {
	unsigned count;
	struct {
		uint32_t card;
		uint32_t instance;
		int index; /* of the card, as CUDA_VISIBLE_DEVICES counts */
		const char *uuid;
	} at[CANDIDATES];
};

static void add(struct candidates *candidates, uint32_t card, uint32_t instance, int index,
		const char *uuid)
{
	unsigned place = candidates->count++;

	candidates->at[place].card = card;
	candidates->at[place].instance = instance;
	candidates->at[place].index = index;
	candidates->at[place].uuid = uuid;
}

static void find_candidates(const struct gpusim_node *node, struct candidates *candidates)
{
	uint32_t cards[GPUSIM_CARDS];
	unsigned count = gpusim_visible_cards(node, cards);

	candidates->count = 0;
	for (unsigned i = 0; i < count; i++) {
		const struct gpusim_card *card = &node->cards[cards[i]];

		if (!card->mig_enabled) {
			add(candidates, cards[i], GPUSIM_NO_INSTANCE, (int)i, card->uuid);
			continue;
		}
		for (uint32_t j = 0; j < GPUSIM_INSTANCES; j++) {
			const struct gpusim_instance *instance = &card->instances[j];

			if (gpusim_is_mig_device(card, j) && gpusim_sees_instance(card, j))
				add(candidates, cards[i], j, -1, instance->uuid);
		}
	}
}

/* An entry is an index, or the beginning of exactly one UUID. -1: it names nothing. */
static int named(const struct candidates *candidates, const char *entry, size_t length)
{
	char *end;
	long index = strtol(entry, &end, 10);
	int found = -1;

	if (length > 0 && end == entry + length) {
		for (unsigned i = 0; i < candidates->count; i++) {
			if (candidates->at[i].index == index)
				return (int)i;
		}
		return -1;
	}
	for (unsigned i = 0; length > 4 && i < candidates->count; i++) {
		if (strncmp(candidates->at[i].uuid, entry, length) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = (int)i;
	}
	return found;
}

static void make_visible(struct driver *target, const struct candidates *candidates, unsigned place)
{
	struct device *device = &target->devices[target->count];

	memset(device, 0, sizeof(*device));
	device->ordinal = target->count++;
	device->card = candidates->at[place].card;
	device->instance = candidates->at[place].instance;
	device->engine = (struct engine *)(void *)target->node->engine_card[device->card];
}

/* As the driver does: the list ends at the first entry that names nothing; twice the same is no
 * list. */
static void follow_list(struct driver *target, const struct candidates *candidates,
			const char *list)
{
	bool is_taken[CANDIDATES] = {false};

	while (*list && target->count < DRIVER_DEVICES) {
		size_t length = strcspn(list, ",");
		int place = named(candidates, list, length);

		if (place < 0)
			return;
		if (is_taken[place]) {
			target->count = 0;
			return;
		}
		is_taken[place] = true;
		make_visible(target, candidates, (unsigned)place);
		list += length + (list[length] == ',');
	}
}

void driver_enumerate(struct driver *target)
{
	const char *list = setting("CUDA_VISIBLE_DEVICES");
	struct candidates candidates;

	target->count = 0;
	find_candidates(target->node, &candidates);
	if (list) {
		follow_list(target, &candidates, list);
		return;
	}
	for (unsigned i = 0; i < candidates.count && target->count < DRIVER_DEVICES; i++) {
		if (candidates.at[i].instance == GPUSIM_NO_INSTANCE)
			make_visible(target, &candidates, i);
	}
	/* CUDA uses one MIG slice of all there are. */
	if (target->count == 0 && candidates.count > 0)
		make_visible(target, &candidates, 0);
}
