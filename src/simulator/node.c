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

/* Is this card, or a MIG slice of it, what one entry of the list names? */
static bool entry_names(const struct gpusim_card *card, unsigned index, const char *entry,
			size_t length)
{
	char *end;
	unsigned long number = strtoul(entry, &end, 10);

	if (length > 0 && end == entry + length)
		return number == index;
	if (strlen(card->uuid) == length && strncmp(card->uuid, entry, length) == 0)
		return true;
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		const struct gpusim_instance *instance = &card->instances[i];
		if (instance->present && strlen(instance->uuid) == length &&
		    strncmp(instance->uuid, entry, length) == 0)
			return true;
	}
	return false;
}

static bool list_names(const struct gpusim_card *card, unsigned index, const char *list)
{
	for (const char *entry = list; *entry;) {
		size_t length = strcspn(entry, ",");
		if (entry_names(card, index, entry, length))
			return true;
		entry += length + (entry[length] == ',');
	}
	return false;
}

bool gpusim_holds(const char *directory, const char *uuid)
{
	char path[512];
	int length = snprintf(path, sizeof(path), "%s/%s", directory, uuid);

	return length > 0 && (size_t)length < sizeof(path) && access(path, F_OK) == 0;
}

/* Named by mounts, as the NVIDIA runtime takes them: the variable is a directory of UUIDs. */
static bool directory_names(const struct gpusim_card *card, const char *directory)
{
	if (gpusim_holds(directory, card->uuid))
		return true;
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		if (gpusim_is_mig_device(card, i) &&
		    gpusim_holds(directory, card->instances[i].uuid))
			return true;
	}
	return false;
}

static bool is_named(const struct gpusim_card *card, unsigned index, const char *list)
{
	return list[0] == '/' ? directory_names(card, list) : list_names(card, index, list);
}

unsigned gpusim_visible_cards(const struct gpusim_node *node, uint32_t slots[GPUSIM_CARDS])
{
	const char *list = getenv("NVIDIA_VISIBLE_DEVICES"); // NOLINT(concurrency-mt-unsafe)
	uint32_t all[GPUSIM_CARDS];
	unsigned total = present_cards(node, all);
	unsigned count = 0;
	bool everything = !list || !*list || strcmp(list, "all") == 0 || strcmp(list, "void") == 0;

	for (unsigned index = 0; index < total; index++) {
		if (everything || is_named(&node->cards[all[index]], index, list))
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
