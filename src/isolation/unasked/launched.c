/*
 * A set that only grows, so that readers need no lock: a wider one is filled
 * first and then takes the old one's place, which stays mapped for who still
 * reads it (all of them together are no larger than the last). Memory comes from
 * mmap, but for the first: the application's allocator may be waiting in a hook.
 */
#include "unasked/launched.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

enum { FIRST_BITS = 12, SETS = 48 };

struct set {
	unsigned bits;
	_Atomic uint64_t *places; /* 0: free */
};

static _Atomic uint64_t first_places[1u << FIRST_BITS];
static struct set sets[SETS] = {{FIRST_BITS, first_places}};
static struct set *_Atomic current = sets;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
static size_t count; /* under `adding` */

static size_t size_of(const struct set *set)
{
	return (size_t)1 << set->bits;
}

/* Where it is, or the free place where it would be; there always is one. */
static _Atomic uint64_t *find(const struct set *set, uint64_t what)
{
	size_t place = (size_t)(what * 0x9E3779B97F4A7C15ull >> (64 - set->bits));

	for (;;) {
		const uint64_t there =
			atomic_load_explicit(&set->places[place], memory_order_relaxed);

		if (!there || there == what)
			return &set->places[place];
		place = (place + 1) & (size_of(set) - 1);
	}
}

bool launched_has(uint64_t what)
{
	const struct set *set = atomic_load_explicit(&current, memory_order_acquire);

	return what && atomic_load_explicit(find(set, what), memory_order_relaxed) == what;
}

/* With the lock. */
static void widen(void)
{
	const struct set *set = atomic_load(&current);
	struct set *wider = sets + (set - sets) + 1;

	if (wider == sets + SETS)
		return;
	wider->bits = set->bits + 1;
	void *places = mmap(NULL, size_of(wider) * sizeof(uint64_t), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (places == MAP_FAILED)
		return;
	wider->places = places;
	for (size_t i = 0; i < size_of(set); i++) {
		const uint64_t there = atomic_load(&set->places[i]);

		if (there)
			atomic_store(find(wider, there), there);
	}
	atomic_store_explicit(&current, wider, memory_order_release);
}

void launched_add(uint64_t what)
{
	pthread_mutex_lock(&adding);
	if (count >= size_of(atomic_load(&current)) / 2)
		widen();
	const struct set *set = atomic_load(&current);
	_Atomic uint64_t *place = find(set, what);

	/* One place stays free, or a search would not end. */
	if (what && atomic_load(place) != what && count + 1 < size_of(set)) {
		atomic_store(place, what);
		count++;
	}
	pthread_mutex_unlock(&adding);
}

void launched_forget_all(void)
{
	pthread_mutex_lock(&adding);
	const struct set *set = atomic_load(&current);

	for (size_t i = 0; i < size_of(set); i++)
		atomic_store_explicit(&set->places[i], 0, memory_order_relaxed);
	count = 0;
	pthread_mutex_unlock(&adding);
}

void launched_after_fork(void)
{
	adding = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	launched_forget_all();
}
