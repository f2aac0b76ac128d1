/* The table of fields.def, read and written. */
#include "fields.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_TEXT, KIND_WORD, KIND_LONG, KIND_MIB };

struct field {
	const char *owner;
	const char *name;
	size_t offset;
	size_t bytes;
	enum kind kind;
};

#define FIELD(structure, member, label, sort)                                                      \
	{#structure, label, offsetof(struct gpusim_##structure, member),                           \
	 sizeof(((struct gpusim_##structure *)0)->member), sort},
#define TEXT(structure, member, label) FIELD(structure, member, label, KIND_TEXT)
#define WORD(structure, member, label) FIELD(structure, member, label, KIND_WORD)
#define LONG(structure, member, label) FIELD(structure, member, label, KIND_LONG)
#define MIB(structure, member, label) FIELD(structure, member, label, KIND_MIB)

static const struct field fields[] = {
#include "fields.def"
};

#define FIELDS_COUNT (sizeof(fields) / sizeof(fields[0]))

static const struct field *find_field(const char *owner, const char *name, size_t length)
{
	for (size_t i = 0; i < FIELDS_COUNT; i++) {
		if (strcmp(fields[i].owner, owner) == 0 && strlen(fields[i].name) == length &&
		    strncmp(fields[i].name, name, length) == 0)
			return &fields[i];
	}
	return NULL;
}

static const char *store_number(const struct field *field, uint8_t *place, const char *value)
{
	char *end;
	unsigned long long number = strtoull(value, &end, 0);

	if (end == value || *end != '\0' || *value == '-')
		return "the value is not a number";
	if (field->kind == KIND_WORD) {
		if (number > UINT32_MAX)
			return "the value does not fit 32 bits";
		uint32_t word = (uint32_t)number;
		memcpy(place, &word, sizeof(word));
		return NULL;
	}
	uint64_t wide = field->kind == KIND_MIB ? number * GPUSIM_MIB : number;
	memcpy(place, &wide, sizeof(wide));
	return NULL;
}

static const char *store(const struct field *field, void *owner, const char *value)
{
	uint8_t *place = (uint8_t *)owner + field->offset;

	if (field->kind != KIND_TEXT)
		return store_number(field, place, value);
	if (strlen(value) >= field->bytes)
		return "the text is too long";
	memset(place, 0, field->bytes);
	memcpy(place, value, strlen(value) + 1);
	return NULL;
}

/* "cards.12.name" -> 12 and "name"; false when it does not start so. */
static bool take_index(const char **name, const char *prefix, unsigned long limit,
		       unsigned long *index)
{
	size_t length = strlen(prefix);
	char *end;

	if (strncmp(*name, prefix, length) != 0)
		return false;
	*index = strtoul(*name + length, &end, 10);
	if (end == *name + length || *end != '.' || *index >= limit)
		return false;
	*name = end + 1;
	return true;
}

const char *gpusim_assign(struct gpusim_node *node, const char *line, size_t length)
{
	char text[512];
	unsigned long card, place;

	if (length >= sizeof(text))
		return "the line is too long";
	memcpy(text, line, length);
	text[length] = '\0';
	char *equals = strchr(text, '=');
	if (!equals)
		return "there is no '='";
	*equals = '\0';

	const char *name = text;
	const char *owner = "node";
	void *structure = node;
	if (take_index(&name, "cards.", GPUSIM_CARDS, &card)) {
		owner = "card";
		structure = &node->cards[card];
		if (take_index(&name, "instances.", GPUSIM_INSTANCES, &place)) {
			owner = "instance";
			structure = &node->cards[card].instances[place];
		} else if (take_index(&name, "profiles.", GPUSIM_MIG_PROFILES, &place)) {
			owner = "mig_profile";
			structure = &node->cards[card].profiles[place];
		}
	}
	const struct field *field = find_field(owner, name, strlen(name));
	return field ? store(field, structure, equals + 1) : "there is no such field";
}

struct writer {
	char *next;
	size_t room;
	bool full;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format,
						      ...)
{
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(writer->next, writer->room, format, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length >= writer->room) {
		writer->full = true;
		return;
	}
	writer->next += length;
	writer->room -= (size_t)length;
}

static uint64_t load_number(const struct field *field, const uint8_t *place)
{
	uint32_t word;
	uint64_t wide;

	if (field->kind == KIND_WORD) {
		memcpy(&word, place, sizeof(word));
		return word;
	}
	memcpy(&wide, place, sizeof(wide));
	return field->kind == KIND_MIB ? wide / GPUSIM_MIB : wide;
}

static void put_fields(struct writer *writer, const char *owner, const char *prefix,
		       const void *structure)
{
	for (size_t i = 0; i < FIELDS_COUNT; i++) {
		const struct field *field = &fields[i];
		const uint8_t *place = (const uint8_t *)structure + field->offset;
		if (strcmp(field->owner, owner) != 0)
			continue;
		if (field->kind == KIND_TEXT) {
			if (*place)
				put(writer, "%s%s=%.*s\n", prefix, field->name,
				    (int)field->bytes - 1, (const char *)place);
			continue;
		}
		uint64_t number = load_number(field, place);
		if (number)
			put(writer, "%s%s=%" PRIu64 "\n", prefix, field->name, number);
	}
}

static void put_card(struct writer *writer, struct gpusim_node *node, uint32_t slot)
{
	const struct gpusim_card *card = &node->cards[slot];
	char prefix[64];

	(void)snprintf(prefix, sizeof(prefix), "cards.%u.", slot);
	put_fields(writer, "card", prefix, card);
	put(writer, "%smemory_used_bytes=%" PRIu64 "\n", prefix,
	    gpusim_card_used_bytes(node, slot));
	for (unsigned i = 0; i < GPUSIM_INSTANCES; i++) {
		(void)snprintf(prefix, sizeof(prefix), "cards.%u.instances.%u.", slot, i);
		if (card->instances[i].present)
			put_fields(writer, "instance", prefix, &card->instances[i]);
	}
}

bool gpusim_write_lines(struct gpusim_node *node, char *lines, size_t bytes)
{
	struct writer writer = {.next = lines, .room = bytes};
	char prefix[64];

	put_fields(&writer, "node", "", node);
	put(&writer, "generation=%" PRIu64 "\n", atomic_load(&node->generation));
	for (uint32_t slot = 0; slot < node->cards_count && slot < GPUSIM_CARDS; slot++)
		put_card(&writer, node, slot);
	for (unsigned slot = 0; slot < GPUSIM_PROCESSES; slot++) {
		const struct gpusim_process *process = &node->processes[slot];
		if (!process->used)
			continue;
		(void)snprintf(prefix, sizeof(prefix), "processes.%u.", slot);
		put(&writer, "%spid=%d\n", prefix, gpusim_process_visible_pid(node, process));
		put_fields(&writer, "process", prefix, process);
	}
	return !writer.full;
}
