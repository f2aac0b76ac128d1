#include "steps.h"

#include "../costs.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_AFTER_NS 200000000
/* As the kernel throttles a cgroup. */
#define PERIOD_NS 100000000u

static __thread int own = -1; /* this thread's place */

void steps_lay_out(struct steps *steps)
{
	pthread_mutexattr_t attributes;

	if (steps->layout)
		return;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&steps->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	__atomic_store_n(&steps->layout, 1, __ATOMIC_RELEASE);
}

static void lock(struct steps *steps)
{
	if (pthread_mutex_lock(&steps->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&steps->lock);
}

static void unlock(struct steps *steps)
{
	pthread_mutex_unlock(&steps->lock);
}

bool steps_is_on(const struct steps *steps)
{
	return __atomic_load_n(&steps->is_on, __ATOMIC_ACQUIRE);
}

uint64_t steps_now_ns(const struct steps *steps)
{
	return __atomic_load_n(&steps->now_ns, __ATOMIC_ACQUIRE);
}

bool steps_is_member(void)
{
	return own >= 0;
}

static void wake(struct steps *steps, struct steps_member *member)
{
	__atomic_store_n(&member->is_waiting, 0, __ATOMIC_RELEASE);
	if (own < 0 || member != &steps->members[own])
		syscall(SYS_futex, &member->is_waiting, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Moves the clock when nobody runs: to the first end of a wait. With the lock. */
static void turn(struct steps *steps)
{
	uint64_t first_ns = UINT64_MAX;

	if (!steps->is_full)
		return;
	for (unsigned i = 0; i < STEPS_MEMBERS; i++) {
		const struct steps_member *member = &steps->members[i];

		if (!member->pid)
			continue;
		if (!member->is_waiting)
			return;
		if (member->until_ns < first_ns)
			first_ns = member->until_ns;
	}
	if (first_ns == UINT64_MAX)
		return;
	if (first_ns > steps->now_ns)
		__atomic_store_n(&steps->now_ns, first_ns, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < STEPS_MEMBERS; i++) {
		struct steps_member *member = &steps->members[i];

		if (member->pid && member->until_ns <= steps->now_ns)
			wake(steps, member);
	}
}

/* Who was killed waits for nothing, and holds nobody up. With the lock. */
static void bury(struct steps *steps)
{
	for (unsigned i = 0; i < STEPS_MEMBERS; i++) {
		struct steps_member *member = &steps->members[i];

		if (member->pid && kill(member->pid, 0) != 0 && errno == ESRCH)
			member->pid = 0;
	}
}

/* Until somebody turns the clock to our end; now and then, a look at who still lives. */
static void await_turn(struct steps *steps, struct steps_member *member)
{
	static const struct timespec look_after = {.tv_nsec = LOOK_AFTER_NS};

	while (__atomic_load_n(&member->is_waiting, __ATOMIC_ACQUIRE)) {
		if (syscall(SYS_futex, &member->is_waiting, FUTEX_WAIT, 1, &look_after, NULL, 0) ==
			    0 ||
		    errno != ETIMEDOUT)
			continue;
		lock(steps);
		bury(steps);
		turn(steps);
		unlock(steps);
	}
}

/* Waits end late by an amount that differs, as on a real machine: or tenants would fall in step. */
uint64_t steps_lateness_ns(uint64_t mean_ns)
{
	static __thread uint64_t seed;

	seed = (seed ? seed : 0x9E3779B97F4A7C15u * (uint64_t)(own + 1)) * 6364136223846793005u +
	       1442695040888963407u;
	return mean_ns / 2 + (seed >> 33) % mean_ns;
}

/* A process that may compute only in the first part of each 100 ms goes on when the next begin. */
static uint64_t past_the_stop_ns(uint64_t until_ns)
{
	static uint64_t stopped_ns = UINT64_MAX;

	if (stopped_ns == UINT64_MAX)
		stopped_ns = gpusim_cost(COST_STOPPED_MS, NULL) * 1000000;
	const uint64_t left_ns = PERIOD_NS - until_ns % PERIOD_NS;

	return left_ns <= stopped_ns ? until_ns + left_ns : until_ns;
}

void steps_wait(struct steps *steps, uint64_t duration_ns)
{
	struct steps_member *member = &steps->members[own];

	lock(steps);
	member->until_ns = past_the_stop_ns(steps->now_ns + duration_ns);
	member->is_waiting = 1;
	turn(steps);
	unlock(steps);
	await_turn(steps, member);
}

static unsigned count_members(const struct steps *steps)
{
	unsigned count = 0;

	for (unsigned i = 0; i < STEPS_MEMBERS; i++)
		count += steps->members[i].pid != 0;
	return count;
}

/* With the lock; the clock begins where the other one stands. */
static void enrol(struct steps *steps, uint32_t count, uint64_t now_ns)
{
	struct steps_member *member = steps->members;

	bury(steps);
	if (!count_members(steps)) {
		steps->wanted = count;
		steps->is_full = 0;
		steps->now_ns = now_ns;
		__atomic_store_n(&steps->is_on, 1, __ATOMIC_RELEASE);
	}
	while (member->pid)
		member++;
	own = (int)(member - steps->members);
	*member =
		(struct steps_member){.pid = getpid(), .is_waiting = 1, .until_ns = steps->now_ns};
	if (count_members(steps) >= steps->wanted)
		steps->is_full = 1;
	turn(steps);
}

bool steps_join(struct steps *steps, uint32_t count, uint64_t now_ns)
{
	if (own >= 0 || !count || count > STEPS_MEMBERS)
		return false;
	lock(steps);
	if (count_members(steps) < STEPS_MEMBERS)
		enrol(steps, count, now_ns);
	unlock(steps);
	if (own < 0)
		return false;
	await_turn(steps, &steps->members[own]);
	return true;
}

bool steps_leave(struct steps *steps)
{
	bool is_last;

	if (own < 0)
		return false;
	lock(steps);
	steps->members[own].pid = 0;
	own = -1;
	bury(steps);
	is_last = !count_members(steps);
	if (!is_last)
		turn(steps);
	unlock(steps);
	return is_last;
}
