/* A small table that may forget: who is pushed out is measured again. */
#include "compute/estimate.h"

#include <string.h>

enum { PLACES = 8192, WEIGHT = 4, WORST_FADES = 64, SURPRISE = 2 };

/*
 * What a kind takes alone is the least that was seen in a window of time, and of launches, and
 * in the one before. One that took so much more has waited: by a half, or by an eighth where a
 * quarter of them take the least.
 */
#define SOLO_WINDOW_NS 1000000000u
enum { SOLO_LAUNCHES = 128, SOLO_STEADY = 16, SOLO_WAITED = 256 };
enum { SOLO_MORE = 2, SOLO_LITTLE_MORE = 8, SOLO_SAME = 32, SOLO_ALL = 4096 };

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
 * Longer kernels take longer than their launch. Each kind is sampled at first after so many
 * launches, and then more and more seldom while it takes what is known.
 */
#define SAMPLE_BELOW_NS 50000u
#define SAMPLE_NEAR_NS 500u
enum { SAMPLE_FROM = 16, SAMPLE_UPTO = 4096, SAMPLE_LASTS = 4 * SAMPLE_UPTO, SAMPLE_NEAR = 4 };

/*
 * Shorter ones lie within a turn now and then, longer ones hold about as many of others as of
 * ours. Each window of time should hold such measurements.
 */
#define QUIET_ABOVE_NS 500000u
#define QUIET_BELOW_NS 12000000u
#define QUIET_EVERY_NS 300000000u

/* What is seen in a window of time. */
struct least {
	uint64_t since_ns, first_ns, second_ns;
	uint32_t count;
};

struct place {
	uint64_t what;
	uint64_t duration_ns;
	uint64_t worst_ns;      /* of late */
	uint64_t solo_ns;       /* 0: not known */
	struct least recent;    /* of one window, */
	uint64_t before_ns;     /* and of the one before it */
	int32_t often_least;    /* how many of late took the least, of SOLO_ALL */
	uint32_t waited;        /* measurements until it is forgotten that one took longer */
	uint64_t steady;        /* launches since it last took much longer than it used to */
	uint64_t samples_ns[2]; /* the last two; 0: none */
	uint64_t quiet_from_ns; /* not measured without neighbours before */
	bool was_quiet;
	uint32_t since_sample; /* launches */
	uint32_t sample_every; /* 0: SAMPLE_FROM */
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

static uint64_t smaller(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static uint64_t least_sample_ns(const struct place *place)
{
	return smaller(place->samples_ns[0], place->samples_ns[1]);
}

/* Neighbours' turns make a sample longer: of two the shorter one tells. */
static bool is_as_sampled(const struct place *place)
{
	const uint64_t least_ns = least_sample_ns(place);

	return least_ns && place->solo_ns < SAMPLE_BELOW_NS && place->since_sample < SAMPLE_LASTS &&
	       least_ns <= place->solo_ns + place->solo_ns / SAMPLE_NEAR + SAMPLE_NEAR_NS;
}

struct estimate estimate_of(uint64_t what)
{
	static const struct place unknown = {.duration_ns = UNKNOWN_NS};
	const struct place *place = place_of(what);
	const bool is_known = what && place->what == what;

	place = is_known ? place : &unknown;
	return (struct estimate){
		.work_ns = place->duration_ns,
		.solo_ns = place->steady >= SOLO_STEADY ? place->solo_ns : ESTIMATE_UNKNOWN_NS,
		.worst_ns = backlog_of(place),
		.is_known = is_known,
		.has_waited = place->waited > 0,
		.was_quiet = place->was_quiet,
		.is_sampled = is_as_sampled(place),
	};
}

/* A moving average; but what takes far longer than it used to is believed at once. */
void estimate_learn(uint64_t what, uint64_t measured_ns, uint32_t launches)
{
	struct place *place = place_of(what);

	if (place->what != what)
		*place = (struct place){.what = what, .duration_ns = measured_ns};
	place->steady += launches;
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

/* No single odd figure makes it. */
static uint64_t second_least_ns(const struct least *least)
{
	return least->count > 1 ? least->second_ns : least->first_ns;
}

static void keep_least(struct place *place, uint64_t passed_ns, uint64_t now_ns)
{
	struct least *recent = &place->recent;

	if (recent->count >= SOLO_LAUNCHES && now_ns - recent->since_ns >= SOLO_WINDOW_NS) {
		place->before_ns = second_least_ns(recent);
		recent->count = 0;
	}
	if (!recent->count) {
		*recent = (struct least){.since_ns = now_ns, .first_ns = passed_ns};
	} else if (passed_ns < recent->first_ns) {
		recent->second_ns = recent->first_ns;
		recent->first_ns = passed_ns;
	} else if (recent->count == 1 || passed_ns < recent->second_ns) {
		recent->second_ns = passed_ns;
	}
	recent->count++;
	if (!place->before_ns)
		place->before_ns = ESTIMATE_UNKNOWN_NS;
}

static void note_waiting(struct place *place, uint64_t passed_ns)
{
	const bool is_least = passed_ns <= place->solo_ns + place->solo_ns / SOLO_SAME;
	const bool is_often_least = place->often_least > SOLO_ALL / 4;
	const uint64_t more_ns = place->solo_ns / (is_often_least ? SOLO_LITTLE_MORE : SOLO_MORE);

	place->often_least += ((is_least ? SOLO_ALL : 0) - place->often_least) / 32;
	if (passed_ns > place->solo_ns + more_ns)
		place->waited = SOLO_WAITED;
	else if (place->waited)
		place->waited--;
}

/*
 * Nobody's turns make it shorter, so it is the least that is seen of late; and neighbours
 * that have a share wait for it now and then, so that is seen within the window.
 */
void estimate_learn_solo(uint64_t what, uint64_t passed_ns, bool is_asked, uint64_t now_ns)
{
	struct place *place = place_of(what);

	if (place->what != what)
		return;
	note_waiting(place, passed_ns);
	keep_least(place, passed_ns ? passed_ns : 1, now_ns);
	/* Nobody was there: no second one has to say the same. */
	if (is_asked && place->was_quiet)
		keep_least(place, passed_ns ? passed_ns : 1, now_ns);
	const uint64_t least_ns = smaller(second_least_ns(&place->recent), place->before_ns);

	if (least_ns < place->solo_ns || !place->solo_ns || !is_as_sampled(place))
		place->solo_ns = least_ns;
	/* So late is no launch. */
	if (passed_ns > 2 * place->solo_ns + SURPRISE_NS)
		place->sample_every = SAMPLE_FROM;
}

bool estimate_wants_sample(uint64_t what)
{
	struct place *place = place_of(what);

	if (!what || place->what != what || place->steady < SOLO_STEADY ||
	    place->solo_ns >= SAMPLE_BELOW_NS)
		return false;
	return ++place->since_sample >= (place->sample_every ? place->sample_every : SAMPLE_FROM);
}

void estimate_sample(uint64_t what, uint64_t took_ns)
{
	struct place *place = place_of(what);

	if (place->what != what)
		return;
	/* A neighbour's turn is in it. */
	if (took_ns >= SAMPLE_BELOW_NS)
		took_ns = 0;
	place->since_sample = 0;
	if (took_ns) {
		place->samples_ns[1] = place->samples_ns[0];
		place->samples_ns[0] = took_ns;
		/* Nor does one odd figure make it shorter, or longer. */
		if (place->samples_ns[1])
			place->solo_ns =
				smaller(place->solo_ns, larger(took_ns, place->samples_ns[1]));
		if (is_as_sampled(place))
			place->solo_ns = larger(place->solo_ns, least_sample_ns(place));
	}
	place->sample_every =
		took_ns && !is_as_sampled(place)
			? SAMPLE_FROM
			: (uint32_t)smaller(SAMPLE_UPTO,
					    2 * (uint64_t)larger(place->sample_every, SAMPLE_FROM));
}

bool estimate_wants_quiet(uint64_t what, uint64_t now_ns)
{
	const struct place *place = place_of(what);

	return what && place->what == what && place->steady >= SOLO_STEADY &&
	       place->solo_ns >= QUIET_ABOVE_NS &&
	       smaller(place->solo_ns, place->duration_ns) <= QUIET_BELOW_NS &&
	       now_ns >= place->quiet_from_ns;
}

void estimate_note_quiet(uint64_t what, bool is_quiet, uint64_t now_ns)
{
	struct place *place = place_of(what);

	if (place->what != what)
		return;
	place->was_quiet = is_quiet;
	place->quiet_from_ns = now_ns + QUIET_EVERY_NS;
}

void estimate_forget_all(void)
{
	memset(places, 0, sizeof(places));
}
