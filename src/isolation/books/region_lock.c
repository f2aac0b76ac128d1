/* The lock of the shared region: taken, taken over from the dead, and known for corrupt. */
#include "books/region.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool region_make_lock(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attributes;

	if (pthread_mutexattr_init(&attributes) != 0)
		return false;
	const bool is_made =
		pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
		pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
		pthread_mutex_init(lock, &attributes) == 0;

	pthread_mutexattr_destroy(&attributes);
	return is_made;
}

/* The word that says shared and robust; never written after it was made. */
bool region_has_lock(const struct region *region)
{
	static _Atomic int known;
	pthread_mutex_t fresh;

	if (!atomic_load_explicit(&known, memory_order_relaxed)) {
		if (!region_make_lock(&fresh))
			return false;
		atomic_store_explicit(&known, fresh.__data.__kind, memory_order_relaxed);
		pthread_mutex_destroy(&fresh);
	}
	return __atomic_load_n(&region->lock.__data.__kind, __ATOMIC_RELAXED) ==
	       atomic_load_explicit(&known, memory_order_relaxed);
}

/*
 * False only when its owner is certainly gone. The lock that he holds says it in any pid namespace,
 * and for a tenth of what a look into /proc costs. Without one, pids of another namespace say
 * nothing here.
 */
static bool is_alive_in(const struct region *region, unsigned slot, int locks)
{
	return region->slots[slot].has_slot_lock ? slot_lock_is_held(locks, slot)
						 : process_is_alive(&region->slots[slot].owner);
}

void region_clear(struct region *region, unsigned slot)
{
	for (unsigned i = 0; i < region->card_count && i < LIMITS_CARDS; i++) {
		struct region_card *card = &region->cards[i];

		card->used_bytes[slot] = 0;
		card->overhead_bytes[slot] = 0;
		atomic_store(&card->inflight_ns[slot], 0);
	}
	/* Nothing of it is out any more. */
	atomic_store(&region->slots[slot].calls, 0);
	atomic_store(&region->slots[slot].unsettled_bytes, 0);
	region->slots[slot].state = SLOT_FREE;
}

unsigned region_reap(struct region *region)
{
	const int locks = slot_lock_open();
	unsigned reaped = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		if (region->slots[i].state == SLOT_FREE || is_alive_in(region, i, locks))
			continue;
		region_clear(region, i);
		reaped++;
	}
	close(locks);
	if (reaped)
		atomic_fetch_add(&region->reaped_total, reaped);
	return reaped;
}

/* Is this the number of a thread of a process that has a slot? In doubt it is. */
static bool is_users_thread(const struct region *region, pid_t thread)
{
	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		const struct region_slot *slot = &region->slots[i];

		if (slot->state == SLOT_FREE)
			continue;
		/* Another pid namespace's numbers cannot be asked for. */
		if (slot->owner.pid_namespace != process_self()->pid_namespace) {
			const int locks = slot_lock_open();
			const bool is_alive = is_alive_in(region, i, locks);

			close(locks);
			if (is_alive)
				return true;
		} else if (syscall(SYS_tgkill, slot->owner.pid, thread, 0) == 0 || errno != ESRCH) {
			return true;
		}
	}
	return false;
}

static bool is_strange(const struct region *region, int word)
{
	const pid_t owner = word & FUTEX_TID_MASK;

	/* A lock that is free has no marks, and nobody waits for himself here. */
	return word && (!owner || owner == syscall(SYS_gettid) || !is_users_thread(region, owner));
}

/*
 * Somebody has it. However long he takes is his affair, but who dies with it tells the
 * kernel: a number that is nobody's, and stays, was written by somebody else. A process
 * without a slot has the lock for microseconds only.
 */
static int wait_for_lock(struct region *region)
{
	enum { MOST_TIMES = 3 };
	unsigned times = 0;
	int before = 0;

	for (;;) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		const int result = pthread_mutex_timedlock(&region->lock, &until);
		const int word = __atomic_load_n(&region->lock.__data.__lock, __ATOMIC_RELAXED);

		if (result != ETIMEDOUT)
			return result;
		times = is_strange(region, word) ? times + 1 : 0;
		times = times && (word ^ before) & FUTEX_TID_MASK ? 1 : times;
		before = word;
		if (times == MOST_TIMES)
			return ENOTRECOVERABLE;
	}
}

bool region_lock(struct region *region)
{
	if (!region_has_lock(region))
		return false;
	int result = pthread_mutex_trylock(&region->lock);

	if (result == EBUSY)
		result = wait_for_lock(region);
	if (result == EOWNERDEAD) {
		/* Every word is whole and totals are sums: only the dead must go. */
		if (pthread_mutex_consistent(&region->lock) != 0)
			return false;
		region_reap(region);
		return true;
	}
	return result == 0;
}

void region_unlock(struct region *region)
{
	pthread_mutex_unlock(&region->lock);
}
