/* What every driver library asks the node: its cards in order, its events. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Cards that are plugged in, by (order, slot). Unlike the slot, the index moves. */
static unsigned present_cards(const struct gpusim_node *node, uint32_t slots[GPUSIM_CARDS])
{
	unsigned count = 0;

	for (uint32_t slot = 0; slot < node->cards_count && slot < GPUSIM_CARDS; slot++) {
		if (!node->cards[slot].present)
			continue;
		unsigned place = count++;
		while (place > 0 && node->cards[slots[place - 1]].order > node->cards[slot].order) {
			slots[place] = slots[place - 1];
			place--;
		}
		slots[place] = slot;
	}
	return count;
}

static bool names_directory(const char *directory, const char *uuid)
{
	char path[512];
	int length = snprintf(path, sizeof(path), "%s/%s", directory, uuid);

	return length > 0 && (size_t)length < sizeof(path) && access(path, F_OK) == 0;
}

/* By mounts, as the NVIDIA runtime takes them, the variable is a directory of UUIDs. */
static bool names_uuid(const char *list, const char *uuid)
{
	if (list[0] == '/')
		return names_directory(list, uuid);
	for (const char *entry = list; *entry;) {
		size_t length = strcspn(entry, ",");
		if (strlen(uuid) == length && strncmp(uuid, entry, length) == 0)
			return true;
		entry += length + (entry[length] == ',');
	}
	return false;
}

static bool names_index(const char *list, unsigned index)
{
	for (const char *entry = list; *entry;) {
		size_t length = strcspn(entry, ",");
		char *end;
		unsigned long number = strtoul(entry, &end, 10);
		if (length > 0 && end == entry + length && number == index)
			return true;
		entry += length + (entry[length] == ',');
	}
	return false;
}

static bool names_an_instance(const char *list, const struct gpusim_card *card)
{
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		if (gpusim_is_mig_device(card, i) && names_uuid(list, card->instances[i].uuid))
			return true;
	}
	return false;
}

/* What the container was given; NULL: everything. */
static const char *given(void)
{
	const char *list = getenv("NVIDIA_VISIBLE_DEVICES"); // NOLINT(concurrency-mt-unsafe)
	bool everything = !list || !*list || strcmp(list, "all") == 0 || strcmp(list, "void") == 0;

	return everything ? NULL : list;
}

bool gpusim_sees_instance(const struct gpusim_card *card, unsigned instance)
{
	const char *list = given();

	return !list || names_uuid(list, card->instances[instance].uuid) ||
	       names_uuid(list, card->uuid) || !names_an_instance(list, card);
}

unsigned gpusim_visible_cards(const struct gpusim_node *node, uint32_t slots[GPUSIM_CARDS])
{
	const char *list = given();
	uint32_t all[GPUSIM_CARDS];
	unsigned total = present_cards(node, all);
	unsigned count = 0;

	for (unsigned index = 0; index < total; index++) {
		const struct gpusim_card *card = &node->cards[all[index]];
		if (!list || names_index(list, index) || names_uuid(list, card->uuid) ||
		    names_an_instance(list, card))
			slots[count++] = all[index];
	}
	return count;
}

bool gpusim_is_mig_device(const struct gpusim_card *card, uint32_t instance)
{
	return card->mig_enabled && card->instances[instance].present &&
	       !card->instances[instance].is_empty;
}

void gpusim_post_event(struct gpusim_node *node, uint32_t card,
		       const struct gpusim_instance *instance, uint64_t type, uint64_t value)
{
	struct timespec now;
	uint64_t sequence = atomic_load(&node->event_sequence) + 1u;
	struct gpusim_event *event = &node->events[sequence % GPUSIM_EVENTS];

	clock_gettime(CLOCK_REALTIME, &now);
	*event = (struct gpusim_event){
		.sequence = sequence,
		.type = type,
		.value = value,
		.time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
		.card = card,
		.gpu_instance = instance ? instance->gpu_instance : GPUSIM_NO_INSTANCE,
		.compute_instance = instance ? instance->compute_instance : GPUSIM_NO_INSTANCE,
	};
	atomic_store(&node->event_sequence, sequence);
	gpusim_announce(node);
}
