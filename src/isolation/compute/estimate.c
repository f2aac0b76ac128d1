/*
 * What the kinds of launches take by themselves: means of samples. A small table that may
 * forget: a kind that is pushed out is measured again.
 */
#include "compute/compute.h"

/* Until it was seen once. */
#define UNKNOWN_NS 5000000u

/*
 * A launch of the same size may take far longer than the one before it: it may depend on what
 * its arguments say. So it is trusted with 200 ms at first, or 2,000 times what it takes, and with
 * less the longer its kind has taken about the same: after this many launches with a third of
 * that, after twice as many with a seventh, and in the end with 100 times what it takes, or 10 ms.
 */
#define WORST_AT_FIRST_NS 200000000.0
#define WORST_STEADY_NS 10000000u
enum { WORST_FIRST_TIMES = 2000, WORST_STEADY_TIMES = 100, STEADY_LAUNCHES = 4096 };
enum { WORST_FADES = 64 };

#define SURPRISE_NS 20000u
enum { SURPRISE_TIMES = 4 };

/* The mean is of about so many samples. */
enum { MEAN_OF = 16 };

/* With each doubt twice as many launches are measured, up to so many doublings. */
enum { DOUBTS_MOST = 12 };

/*
 * The first launches of a kind are all sampled, then fewer and fewer of them while samples agree
 * to a quarter. Longer ones always are: two events are nothing beside them.
 */
#define SAMPLE_ALWAYS_NS 200000u
#define ALIKE_NS 2000u
enum {
	SAMPLE_FIRST = 4,
	SAMPLE_EVERY = 4,
	SAMPLE_OFTEN = 64, /* samples; after them not so often, since each costs the host 10 us */
	SAMPLE_EVERY_LATER = 32,
	SAMPLE_EVERY_MOST = 256
};

/* NULL: never measured. */
static const struct place *known_place(const struct meter *meter, uint64_t what)
{
	const struct place *place = &meter->places[place_of(what, METER_PLACES_BITS)];

	return what && place->what == what ? place : NULL;
}

static struct place *make_place(struct meter *meter, uint64_t what, uint64_t took_ns)
{
	struct place *place = &meter->places[place_of(what, METER_PLACES_BITS)];

	if (place->what != what)
		*place = (struct place){.what = what,
					.mean_ns = (double)took_ns,
					.all = SAMPLE_FIRST,
					.every = SAMPLE_EVERY};
	return place;
}

/* A sample beyond that is far longer than the mean. */
static double surprise_ns(const struct place *place)
{
	return place->mean_ns * (double)SURPRISE_TIMES + SURPRISE_NS;
}

static double lesser(double one, double other)
{
	return one < other ? one : other;
}

static uint64_t worst_of(const struct place *place)
{
	const double steady = (double)place->steady / (double)STEADY_LAUNCHES;
	const double first_ns =
		lesser(WORST_AT_FIRST_NS, place->mean_ns * (double)WORST_FIRST_TIMES);
	const double least_ns =
		lesser(WORST_STEADY_NS, place->mean_ns * (double)WORST_STEADY_TIMES);
	const double now_ns = first_ns / (1 + steady + steady * steady);
	const uint64_t worst_ns = (uint64_t)(now_ns > least_ns ? now_ns : least_ns);

	return worst_ns > place->worst_ns ? worst_ns : place->worst_ns;
}

struct estimate estimate_of(const struct meter *meter, uint64_t what)
{
	const struct place *place = known_place(meter, what);

	if (!place)
		return (struct estimate){.mean_ns = UNKNOWN_NS,
					 .worst_ns = (uint64_t)WORST_AT_FIRST_NS};
	const uint64_t mean_ns = (uint64_t)place->mean_ns + 1;

	return (struct estimate){.mean_ns = mean_ns,
				 .worst_ns = worst_of(place),
				 .more_ns =
					 place->worst_ns > mean_ns ? place->worst_ns - mean_ns : 0,
				 .is_known = true};
}

static bool is_always_sampled(const struct place *place)
{
	return place->mean_ns >= SAMPLE_ALWAYS_NS || (double)place->worst_ns > surprise_ns(place);
}

bool estimate_wants_sample(struct meter *meter, uint64_t what)
{
	if (!known_place(meter, what))
		return true;
	struct place *place = make_place(meter, what, 0);

	place->steady++;
	if (place->all) {
		place->all--;
		return true;
	}
	if (is_always_sampled(place))
		return true;
	if (place->due) {
		place->due--;
		return false;
	}
	/* Not in step with the program. */
	place->due = place->every / 2 +
		     (uint32_t)((place->steady * 0x9E3779B97F4A7C15ull >> 33) % place->every);
	return true;
}

uint32_t estimate_unsampled(struct meter *meter, uint64_t what, uint32_t launches)
{
	if (!known_place(meter, what))
		return 0;
	struct place *place = make_place(meter, what, 0);

	place->steady += launches;
	place->due -= launches < place->due ? launches : place->due;
	return place->all || is_always_sampled(place) ? 0 : place->due;
}

static void doubt(struct place *place, uint64_t longer_ns)
{
	place->all = (uint32_t)larger(place->all, (uint64_t)MEAN_OF << place->doubts);
	place->doubts += place->doubts < DOUBTS_MOST;
	place->open++;
	place->open_ns += longer_ns;
}

/* A long one is proved: so may those before it have been long that were in doubt. */
static uint64_t proved_ns(struct place *place, uint64_t took_ns)
{
	const uint64_t most_ns = smaller(place->open_ns, place->open * took_ns);

	place->open = 0;
	place->open_ns = 0;
	return most_ns;
}

uint64_t estimate_sample(struct meter *meter, uint64_t what, uint64_t took_ns, bool is_at_most)
{
	uint64_t proved = 0;
	struct place *place = make_place(meter, what, took_ns);
	const double off_ns = (double)took_ns - place->mean_ns;

	if (place->samples && (double)took_ns > surprise_ns(place)) {
		if (is_at_most) {
			doubt(place, took_ns - (uint64_t)place->mean_ns);
			return (uint64_t)place->mean_ns;
		}
		proved = proved_ns(place, took_ns);
		place->steady = 0;
		place->all = (uint32_t)larger(place->all, MEAN_OF);
	}
	/* Not more seldom because it happens to be long or short just now. */
	if (off_ns * off_ns > place->mean_ns * place->mean_ns / 16 + (double)ALIKE_NS * ALIKE_NS) {
		place->alike = 0;
		place->every = place->heard < SAMPLE_OFTEN ? SAMPLE_EVERY : SAMPLE_EVERY_LATER;
	} else if (++place->alike % MEAN_OF == 0 && place->every < SAMPLE_EVERY_MOST) {
		place->every *= 2;
	}
	place->heard++;
	place->samples += place->samples < MEAN_OF;
	place->mean_ns += off_ns / place->samples;
	place->worst_ns -= place->worst_ns / WORST_FADES;
	if (took_ns > place->worst_ns)
		place->worst_ns = took_ns;
	return took_ns + proved;
}

void estimate_doubt(struct meter *meter, uint64_t what, uint64_t longer_ns)
{
	if (known_place(meter, what))
		doubt(make_place(meter, what, longer_ns), longer_ns);
}

/* Until a copy of about that size was measured. */
#define COPY_GUESS_NS 0.1 /* a byte */
enum { COPY_WORST_TIMES = 4 };

static uint64_t bytes_of(uint64_t copy)
{
	return (copy & UINT64_MAX >> 3) | 1;
}

static bool is_batch(uint64_t copy)
{
	return copy >> 61 & 1;
}

/* Copies of a size to a factor of two, and one of them by the least size. */
static uint64_t copy_class(uint64_t copy)
{
	return ~(copy >> 61 << 6 | (63u - (uint64_t)__builtin_clzll(bytes_of(copy))));
}

static double copy_sizes(uint64_t copy)
{
	return (double)bytes_of(copy) / (double)(1ull << (~copy_class(copy) & 63));
}

struct estimate estimate_of_copy(const struct meter *meter, uint64_t copy)
{
	const struct place *place = known_place(meter, copy_class(copy));
	const double mean_ns =
		place ? place->mean_ns * copy_sizes(copy) : (double)bytes_of(copy) * COPY_GUESS_NS;

	return (struct estimate){.mean_ns = (uint64_t)mean_ns + 1,
				 .worst_ns = ((uint64_t)mean_ns + 1) * COPY_WORST_TIMES,
				 .is_known = place && !is_batch(copy)};
}

bool estimate_wants_copy_sample(struct meter *meter, uint64_t copy)
{
	return is_batch(copy) || estimate_wants_sample(meter, copy_class(copy));
}

/* The least counts, since several share the bus; of batches, which are charged all, the last. */
void estimate_copy_sample(struct meter *meter, uint64_t copy, uint64_t took_ns)
{
	const double one_ns = (double)took_ns / copy_sizes(copy);
	struct place *place = make_place(meter, copy_class(copy), (uint64_t)one_ns);

	place->mean_ns = is_batch(copy) ? one_ns : lesser(place->mean_ns, one_ns);
	place->every = SAMPLE_EVERY_LATER;
}
