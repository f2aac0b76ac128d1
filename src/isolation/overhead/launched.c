/*
 * A set with room for more functions and graphs than programs have. Pages of it that
 * nobody needs cost nothing. Memory comes from mmap: the application's allocator may be
 * waiting in a hook.
 */
#include "overhead/overhead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

enum { BITS = 21, PLACES = 1 << BITS, MOST = PLACES / 2 };

static _Atomic uint64_t *_Atomic places; /* 0: free */
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
static size_t count; /* under `adding` */

/* Where it is, or the free place where it would be; there always is one. */
static _Atomic uint64_t *find(_Atomic uint64_t *all, uint64_t what)
{
	size_t place = (size_t)(what * 0x9E3779B97F4A7C15ull >> (64 - BITS));

	for (;; place = (place + 1) & (PLACES - 1)) {
		const uint64_t there = atomic_load_explicit(&all[place], memory_order_relaxed);

		if (!there || there == what)
			return &all[place];
	}
}

bool launched_has(uint64_t what)
{
	_Atomic uint64_t *all = atomic_load_explicit(&places, memory_order_acquire);

	return what && all && atomic_load_explicit(find(all, what), memory_order_relaxed) == what;
}

/* With the lock; NULL without memory. */
static _Atomic uint64_t *map(void)
{
	if (!places) {
		void *room = mmap(NULL, PLACES * sizeof(uint64_t), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (room != MAP_FAILED)
			atomic_store_explicit(&places, room, memory_order_release);
	}
	return places;
}

void launched_add(uint64_t what)
{
	pthread_mutex_lock(&adding);
	_Atomic uint64_t *all = what && count < MOST ? map() : NULL;
	_Atomic uint64_t *place = all ? find(all, what) : NULL;

	if (place && !*place) {
		atomic_store(place, what);
		count++;
	}
	pthread_mutex_unlock(&adding);
}

void launched_forget_all(void)
{
	pthread_mutex_lock(&adding);
	if (places && madvise((void *)places, PLACES * sizeof(uint64_t), MADV_DONTNEED) == 0)
		count = 0;
	pthread_mutex_unlock(&adding);
}

void launched_after_fork(void)
{
	adding = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	launched_forget_all();
}
