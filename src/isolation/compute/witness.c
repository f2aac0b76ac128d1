/*
 * For a card whose neighbours publish nothing to us: NVML's share of each process.
 *
 * A share is time that a process had, not time for which it was on the card.
 * While it is there with n others it has one part in 1 + n, so with u its share
 * and q the part of the time for which it is there, q = u * (1 + our processes
 * there + the q of the others); a few rounds of that find all q.
 *
 * It needs to be known which of the pids are ours. Where NVML means other
 * pids than we do, nothing is taken out: the slice then gets too little of the
 * card beside busy neighbours, never too much.
 */
#include "compute/witness.h"

#include "books/holders.h"
#include "books/nvml.h"
#include "slice/limits.h"

#include <string.h>

enum { SEEN = 32, ROUNDS = 8 };

/* NVML samples every sixth of a second. */
#define ASK_EVERY_NS 170000000ull
enum { LOOK_BACK = 60 }; /* long buckets: a quarter of a second */

struct testimony {
	uint64_t asked_ns; /* 0: never */
	uint32_t others;
};

static struct testimony testimonies[LIMITS_CARDS];

static bool is_ours(const struct holder *holders, unsigned count, uint32_t pid)
{
	for (unsigned i = 0; i < count; i++)
		if (holders[i].pid == pid)
			return true;
	return false;
}

/* The shares of processes that are not ours, the first SEEN of them; returns how many. */
static unsigned foreign_shares(int card, double shares[SEEN])
{
	static struct holder holders[REGION_SLOTS];
	struct nvml_share seen[NVML_SHARES];
	const unsigned held = holders_of(card, holders);
	const unsigned count = nvml_shares(card, seen);
	unsigned found = 0;

	for (unsigned i = 0; i < count && found < SEEN; i++)
		if (seen[i].percent && !is_ours(holders, held, seen[i].pid))
			shares[found++] = (double)seen[i].percent / 100;
	return found;
}

/* How many of our own processes were on the card of late, on average. */
static double ours_there(const struct activity *own, uint64_t now_ns)
{
	uint64_t moment_ns = now_ns, sum_ns = 0;
	const uint64_t begin_ns = now_ns - LOOK_BACK * ACTIVITY_LONG_NS;

	while (moment_ns > begin_ns) {
		const struct activity_bucket bucket = activity_bucket_at(moment_ns - 1, now_ns);

		sum_ns += activity_in(own, &bucket, now_ns, -1) * (moment_ns - bucket.from_ns);
		moment_ns = bucket.from_ns;
	}
	return (double)sum_ns / (double)(now_ns - moment_ns) / (double)ACTIVITY_ONE;
}

static double slot_lock_of(const double *shares, unsigned count, double ours)
{
	double there[SEEN] = {0}, sum = 0;

	for (unsigned round = 0; round < ROUNDS; round++)
		for (unsigned i = 0; i < count; i++) {
			const double others = sum - there[i];
			const double part = shares[i] * (1 + ours + others);

			there[i] = part < 1 ? part : 1;
			sum = others + there[i];
		}
	return sum;
}

uint32_t witness_others(int card, const struct activity *own, uint64_t now_ns)
{
	struct testimony *testimony = &testimonies[card];
	double shares[SEEN];

	if (testimony->asked_ns && now_ns - testimony->asked_ns < ASK_EVERY_NS)
		return testimony->others;
	testimony->asked_ns = now_ns;
	if (!nvml_knows_pid())
		return 0;
	const unsigned count = foreign_shares(card, shares);

	const double there = slot_lock_of(shares, count, ours_there(own, now_ns));

	testimony->others = (uint32_t)(there * (double)ACTIVITY_ONE);
	return testimony->others;
}
