/* A small table that may forget: who is pushed out is measured again. */
#include "compute/estimate.h"

#include <string.h>

enum { PLACES = 8192, WEIGHT = 4, WORST_FADES = 64, SURPRISE = 2 };

/* Until it was seen once: long enough that only few strangers run at a time. */
#define UNKNOWN_NS 5000000u
/*
 * A launch of the same size may take far longer than the one before it: it may
 * depend on what its arguments say. So it is trusted with 200 ms at first, and
 * with less the longer its kind has taken about the same: after this many
 * launches with a third of that, after twice as many with a seventh, and in the
 * end with 100 times what it takes, or 10 ms. One that surprises begins anew.
 */
#define WORST_AT_FIRST_NS 200000000u
#define WORST_STEADY_NS 10000000u
#define SURPRISE_NS 20000u
enum { WORST_STEADY_TIMES = 100, STEADY_LAUNCHES = 4096, SURPRISE_TIMES = 4 };

/*
 * The mean without neighbours is of about so many launches. One that is off by more than a
 * quarter, and a little, says that its kind varies, for a while; so may each new kind.
 */
enum { MEAN_OF = 128, MEAN_ANEW = 8, STEADY_FROM = 16, VARIES_FOR = 4096, VARIES_AT_FIRST = 64 };
#define VARIES_NS 2000u

/*
 * Beside neighbours that are never quiet: the least that passed. Kernels much shorter than a turn
 * lie within one now and then.
 */
#define LEAST_BELOW_NS 500000u
enum { LEAST_FADES = 1024 };

/*
 * Longer kernels take longer than their launch. Each kind is sampled at first after so many
 * launches, and then more and more seldom while it takes what is known.
 */
#define SAMPLE_BELOW_NS 50000u
enum { SAMPLE_FROM = 16, SAMPLE_UPTO = 4096, SAMPLE_LASTS = 4 * SAMPLE_UPTO, DOUBTS = 4 };

/* By chance the shorter of a kind are alone more often than the longer ones. */
#define FAIR_LASTS_NS 5000000000u

#define QUIET_BELOW_NS 12000000u
#define QUIET_EVERY_NS 300000000u

struct place {
	uint64_t what;
	uint64_t duration_ns;
	uint64_t worst_ns;      /* of late */
	double mean_ns;         /* without neighbours; 0: not known */
	uint64_t mean_at_ns;    /* when that was learnt last, */
	uint64_t fair_at_ns;    /* and not because it happened to be short */
	uint64_t least_ns;      /* 0: not known */
	uint64_t steady;        /* launches since it last took much longer than it used to */
	uint64_t samples_ns[2]; /* the last two; 0: none */
	uint32_t mean_of;       /* launches */
	uint32_t varies;        /* launches until that is forgotten */
	uint32_t since_sample;  /* launches */
	uint32_t sample_every;  /* 0: SAMPLE_FROM */
	uint32_t doubts;        /* since the last sample */
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

/* NULL: never measured. */
static struct place *known_place(uint64_t what)
{
	struct place *place = place_of(what);

	return what && place->what == what ? place : NULL;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

static uint64_t smaller(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static uint64_t backlog_of(const struct place *place)
{
	const uint64_t hundredfold_ns = place->duration_ns * WORST_STEADY_TIMES;
	const uint64_t least_ns =
		hundredfold_ns < WORST_STEADY_NS ? hundredfold_ns : WORST_STEADY_NS;
	const double steady = (double)place->steady / (double)STEADY_LAUNCHES;
	const uint64_t worst_ns =
		(uint64_t)((double)WORST_AT_FIRST_NS / (1 + steady + steady * steady));

	return larger(larger(worst_ns, least_ns), place->worst_ns);
}

/* The shorter of two samples that say about the same. */
static uint64_t sampled_ns(const struct place *place)
{
	const uint64_t least_ns = smaller(place->samples_ns[0], place->samples_ns[1]);

	if (!least_ns || place->varies || place->since_sample >= SAMPLE_LASTS)
		return ESTIMATE_UNKNOWN_NS;
	return least_ns;
}

static uint64_t solo_ns(const struct place *place)
{
	if (place->mean_ns > 0)
		return (uint64_t)place->mean_ns;
	if (place->steady >= STEADY_FROM && place->least_ns && place->least_ns < LEAST_BELOW_NS)
		return place->least_ns;
	return ESTIMATE_UNKNOWN_NS;
}

struct estimate estimate_of(uint64_t what)
{
	static const struct place unknown = {.duration_ns = UNKNOWN_NS, .varies = 1};
	const struct place *known = known_place(what);
	const struct place *place = known ? known : &unknown;

	return (struct estimate){
		.work_ns = place->duration_ns,
		.solo_ns = solo_ns(place),
		.least_ns = place->least_ns ? place->least_ns : ESTIMATE_UNKNOWN_NS,
		.sampled_ns = sampled_ns(place),
		.worst_ns = backlog_of(place),
		.longest_ns = place->worst_ns,
		.is_sure = place->mean_ns > 0,
		.is_known = known != NULL,
		.varies = place->varies > 0,
	};
}

/* A moving average; but what takes far longer than it used to is believed at once. */
void estimate_learn(uint64_t what, uint64_t measured_ns, uint32_t launches)
{
	struct place *place = place_of(what);

	if (place->what != what)
		*place = (struct place){
			.what = what, .duration_ns = measured_ns, .varies = VARIES_AT_FIRST};
	place->steady += launches;
	if (place->mean_of)
		place->varies -= (uint32_t)smaller(place->varies, launches);
	if (measured_ns > place->duration_ns * SURPRISE_TIMES + SURPRISE_NS)
		place->steady = 0;
	if (measured_ns / SURPRISE >= place->duration_ns)
		place->duration_ns = measured_ns;
	else
		place->duration_ns = (place->duration_ns * (WEIGHT - 1) + measured_ns) / WEIGHT;
	if (!place->duration_ns)
		place->duration_ns = 1;
	place->worst_ns = larger(place->worst_ns - place->worst_ns / WORST_FADES, measured_ns);
}

static bool is_off(double measured_ns, double known_ns)
{
	const double more_ns =
		measured_ns > known_ns ? measured_ns - known_ns : known_ns - measured_ns;

	return more_ns > known_ns / 4 + VARIES_NS;
}

static void vary(struct place *place)
{
	if (!place->varies)
		place->mean_of = MEAN_ANEW;
	place->varies = VARIES_FOR;
}

/* How many launches are of the same kind as number `i`; 0: that was counted before. */
static uint32_t count_alike(const uint64_t *whats, uint32_t launches, uint32_t i)
{
	uint32_t count = 0;

	for (uint32_t j = 0; j < launches; j++) {
		if (whats[j] == whats[i] && j < i)
			return 0;
		count += whats[j] == whats[i];
	}
	return count;
}

/* Each of several kinds bears its part of what they took longer than known. */
void estimate_learn_solo(const uint64_t *whats, uint32_t launches, uint64_t took_ns, bool is_fair,
			 bool is_single, uint64_t now_ns)
{
	double known_ns = 0;

	for (uint32_t i = 0; i < launches; i++) {
		struct place *place = known_place(whats[i]);

		if (!place)
			return;
		if (place->mean_ns <= 0)
			place->mean_ns = (double)place->duration_ns;
		known_ns += place->mean_ns;
	}
	const double times = (double)took_ns / known_ns;

	for (uint32_t i = 0; i < launches; i++) {
		const uint32_t alike = count_alike(whats, launches, i);
		struct place *place = known_place(whats[i]);

		if (!alike ||
		    (!is_fair && place->varies && now_ns - place->fair_at_ns < FAIR_LASTS_NS))
			continue;
		if (is_fair && place->varies && now_ns - place->fair_at_ns >= FAIR_LASTS_NS)
			place->mean_of = 0;
		if (is_single && place->mean_of && is_off((double)took_ns, place->mean_ns))
			vary(place);
		place->mean_ns += place->mean_ns * (times - 1) * alike / (place->mean_of + alike);
		if (place->mean_ns < 1)
			place->mean_ns = 1;
		place->mean_of = (uint32_t)smaller(place->mean_of + alike, MEAN_OF);
		place->mean_at_ns = now_ns;
		if (is_fair)
			place->fair_at_ns = now_ns;
	}
}

void estimate_note_passed(uint64_t what, uint64_t passed_ns)
{
	struct place *place = known_place(what);

	if (!place)
		return;
	place->least_ns += place->least_ns / LEAST_FADES;
	if (!place->least_ns || passed_ns < place->least_ns)
		place->least_ns = larger(passed_ns, 1);
}

bool estimate_wants_sample(uint64_t what)
{
	struct place *place = known_place(what);

	if (!place || place->steady < STEADY_FROM || place->varies ||
	    place->duration_ns >= SAMPLE_BELOW_NS)
		return false;
	/* Not in step with the program. */
	return ++place->since_sample >=
	       (place->sample_every ? place->sample_every : SAMPLE_FROM) + place->steady % 7;
}

void estimate_sample(uint64_t what, uint64_t took_ns)
{
	struct place *place = known_place(what);

	if (!place)
		return;
	/* A neighbour's turn is in it, or the kind takes longer now: former samples tell no more.
	 */
	const bool is_long = took_ns >= SAMPLE_BELOW_NS;

	if (is_long || (took_ns && place->samples_ns[0] &&
			is_off((double)took_ns, (double)place->samples_ns[0]))) {
		place->samples_ns[0] = place->samples_ns[1] = 0;
		place->sample_every = 0;
	}
	if (is_long)
		took_ns = 0;
	place->since_sample = 0;
	if (is_long || took_ns)
		place->doubts = 0;
	if (took_ns) {
		place->samples_ns[1] = place->samples_ns[0];
		place->samples_ns[0] = took_ns;
	}
	place->sample_every =
		took_ns && sampled_ns(place) == ESTIMATE_UNKNOWN_NS
			? SAMPLE_FROM
			: (uint32_t)smaller(SAMPLE_UPTO,
					    2 * (uint64_t)larger(place->sample_every, SAMPLE_FROM));
}

void estimate_doubt_sample(uint64_t what)
{
	struct place *place = known_place(what);

	if (!place)
		return;
	place->sample_every = 0;
	/* The card is never idle, or there are several streams: no sample can be had. */
	if (++place->doubts >= DOUBTS)
		place->samples_ns[0] = place->samples_ns[1] = 0;
}

bool estimate_wants_quiet(uint64_t what, uint64_t now_ns)
{
	const struct place *place = known_place(what);

	return place && place->steady >= STEADY_FROM &&
	       (place->varies ? place->worst_ns : smaller(solo_ns(place), place->duration_ns)) <=
		       QUIET_BELOW_NS &&
	       now_ns - (place->varies ? place->fair_at_ns : place->mean_at_ns) >= QUIET_EVERY_NS;
}

void estimate_forget_all(void)
{
	memset(places, 0, sizeof(places));
}
