/*
 * A hash table with linear probing and no tombstones, so that a free costs the
 * same after a million allocations as at the start. Memory comes from mmap: the
 * application's allocator may itself be waiting inside one of our hooks.
 */
#include "books/holdings.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct holding *entries;
static uint32_t capacity; /* a power of two */
static uint32_t count;
static uint64_t last_serial;

void holdings_lock(void)
{
	pthread_mutex_lock(&lock);
}

void holdings_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void holdings_after_fork(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	/* The pages stay mapped: the parent may have been in the middle of anything. */
	entries = NULL;
	capacity = 0;
	count = 0;
}

static uint32_t home(uint16_t kind, uint64_t key, uint32_t size)
{
	const uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * 0x9E3779B97F4A7C15ull;

	return (uint32_t)(mixed >> 32) & (size - 1);
}

static void insert(struct holding *into, uint32_t size, const struct holding *entry)
{
	uint32_t place = home(entry->kind, entry->key, size);

	while (into[place].kind != KIND_NONE)
		place = (place + 1) & (size - 1);
	into[place] = *entry;
}

static bool grow(void)
{
	const uint32_t size = capacity ? capacity * 2 : FIRST_CAPACITY;
	struct holding *wider = mmap(NULL, size * sizeof(*wider), PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (wider == MAP_FAILED)
		return false;
	for (uint32_t i = 0; i < capacity; i++)
		if (entries[i].kind != KIND_NONE)
			insert(wider, size, &entries[i]);
	if (entries)
		munmap(entries, capacity * sizeof(*entries));
	entries = wider;
	capacity = size;
	return true;
}

struct holding *holdings_at(enum holding_kind kind, uint64_t key)
{
	if (!capacity)
		return NULL;
	for (uint32_t place = home((uint16_t)kind, key, capacity); entries[place].kind != KIND_NONE;
	     place = (place + 1) & (capacity - 1))
		if (entries[place].key == key && entries[place].kind == kind)
			return &entries[place];
	return NULL;
}

/* Closes the gap by moving back what had probed past it. */
void holdings_remove(struct holding *entry)
{
	uint32_t hole = (uint32_t)(entry - entries);

	for (uint32_t place = (hole + 1) & (capacity - 1); entries[place].kind != KIND_NONE;
	     place = (place + 1) & (capacity - 1)) {
		const uint32_t wanted = home(entries[place].kind, entries[place].key, capacity);

		if (((place - wanted) & (capacity - 1)) >= ((place - hole) & (capacity - 1))) {
			entries[hole] = entries[place];
			hole = place;
		}
	}
	entries[hole].kind = KIND_NONE;
	count--;
}

struct holding *holdings_next(enum holding_kind kind, uint32_t *place)
{
	while (*place < capacity) {
		struct holding *entry = &entries[(*place)++];

		if (entry->kind == kind)
			return entry;
	}
	return NULL;
}

bool holdings_add(const struct holding *entry)
{
	struct holding known = *entry;
	bool is_room = true;

	if (!known.serial)
		known.serial = ++last_serial;
	if (count >= capacity / 4 * 3)
		is_room = grow() || count + 1 < capacity;
	if (is_room) {
		insert(entries, capacity, &known);
		count++;
	}
	return is_room;
}

bool holdings_put(const struct holding *entry)
{
	holdings_lock();
	const bool is_room = holdings_add(entry);

	holdings_unlock();
	return is_room;
}

static bool look_up(enum holding_kind kind, uint64_t key, struct holding *entry, bool is_taken)
{
	holdings_lock();
	struct holding *found = holdings_at(kind, key);

	if (found)
		*entry = *found;
	if (found && is_taken)
		holdings_remove(found);
	holdings_unlock();
	return found != NULL;
}

bool holdings_take(enum holding_kind kind, uint64_t key, struct holding *entry)
{
	return look_up(kind, key, entry, true);
}

bool holdings_get(enum holding_kind kind, uint64_t key, struct holding *entry)
{
	return look_up(kind, key, entry, false);
}

/* Removing moves others to where it was: look there again. */
static bool take_of(enum holding_kind kind, uint64_t context, uint32_t *place,
		    struct holding *taken)
{
	struct holding *entry;

	holdings_lock();
	while ((entry = holdings_next(kind, place)) != NULL && entry->context != context)
		;
	if (entry) {
		*taken = *entry;
		holdings_remove(entry);
		(*place)--;
	}
	holdings_unlock();
	return entry != NULL;
}

/* Until a pass finds none: another thread may grow the table meanwhile and hide some from one. */
void holdings_forget(enum holding_kind kind, uint64_t context, void (*gone)(const struct holding *))
{
	struct holding entry;

	for (bool is_any = context; is_any;) {
		uint32_t place = 0;

		for (is_any = false; take_of(kind, context, &place, &entry); is_any = true)
			if (gone)
				gone(&entry);
	}
}
