/* A small table that may forget: who is pushed out is measured again. */
#include "estimate.h"

#include <string.h>

enum { PLACES = 8192, WEIGHT = 4, WORST_FADES = 64, SURPRISE = 2 };

/* Until it was seen once: long enough that only few strangers run at a time. */
#define UNKNOWN_NS 5000000u
/*
 * A launch of the same size may take far longer than the one before it: it may
 * depend on what its arguments say. So it is trusted with 200 ms, or with 100
 * times what it should take, and short ones with 2000 times that, but never
 * with less than a 32nd of the doubt that is allowed (doubt.h).
 */
#define DOUBT_NS 200000000u
#define DOUBT_LEAST_NS 31250000u
enum { DOUBT_TIMES = 100, DOUBT_TIMES_SHORT = 2000 };

struct place {
	uint64_t what;
	uint64_t duration_ns;
	uint64_t worst_ns; /* of late */
};

static struct place places[PLACES];

/* Where it is, else where it would be. */
static struct place *place_of(uint64_t what)
{
	const uint64_t index = (what * 0x9E3779B97F4A7C15ull) >> 51;
	struct place *first = &places[index], *second = &places[index ^ 1];

	if (first->what != what && (second->what == what || (first->what && !second->what)))
		return second;
	return first;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

static uint64_t doubt_of(uint64_t work_ns, uint64_t worst_ns)
{
	const uint64_t short_ns = work_ns * DOUBT_TIMES_SHORT;
	uint64_t doubt_ns = larger(work_ns * DOUBT_TIMES, DOUBT_LEAST_NS);

	doubt_ns = larger(doubt_ns, short_ns < DOUBT_NS ? short_ns : DOUBT_NS);
	return larger(doubt_ns, worst_ns);
}

struct estimate estimate_of(uint64_t what)
{
	const struct place *place = place_of(what);
	const bool is_known = what && place->what == what;
	const uint64_t work_ns = is_known ? place->duration_ns : UNKNOWN_NS;

	return (struct estimate){.work_ns = work_ns,
				 .doubt_ns = doubt_of(work_ns, is_known ? place->worst_ns : 0),
				 .is_known = is_known};
}

/* A moving average; but what takes far longer than it used to is believed at once. */
void estimate_learn(uint64_t what, uint64_t measured_ns)
{
	struct place *place = place_of(what);

	if (place->what != what)
		*place = (struct place){.what = what};
	if (measured_ns / SURPRISE >= place->duration_ns)
		place->duration_ns = measured_ns;
	else
		place->duration_ns = (place->duration_ns * (WEIGHT - 1) + measured_ns) / WEIGHT;
	if (!place->duration_ns)
		place->duration_ns = 1;
	place->worst_ns = larger(place->worst_ns - place->worst_ns / WORST_FADES, measured_ns);
}

void estimate_forget_all(void)
{
	memset(places, 0, sizeof(places));
}
