/* Writing and reading activity pages; lock-free, since a writer may die anywhere. */
#include "books/activity.h"

static uint32_t parts_of(uint64_t duration_ns, uint64_t whole_ns)
{
	return (uint32_t)(duration_ns * ACTIVITY_ONE / whole_ns);
}

struct ring {
	_Atomic uint64_t *newest;
	_Atomic uint16_t *buckets;
	uint64_t count, bucket_ns;
};

/* Empties the buckets since the newest one, which hold the last round of the ring. */
static void advance(const struct ring *ring, uint64_t number)
{
	uint64_t cleared = atomic_load(ring->newest);

	do {
		if (cleared >= number)
			return;
	} while (!atomic_compare_exchange_weak(ring->newest, &cleared, number));
	if (number - cleared > ring->count)
		cleared = number - ring->count;
	while (cleared++ < number)
		atomic_store_explicit(&ring->buckets[cleared % ring->count], 0,
				      memory_order_relaxed);
}

static void add_to_bucket(_Atomic uint16_t *bucket, uint32_t parts)
{
	uint16_t old = atomic_load_explicit(bucket, memory_order_relaxed);
	uint16_t sum;

	do {
		sum = old + parts > UINT16_MAX ? UINT16_MAX : (uint16_t)(old + parts);
	} while (!atomic_compare_exchange_weak(bucket, &old, sum));
}

/* Each nanosecond counts as `weight` of one. */
static void add_to_ring(const struct ring *ring, uint64_t from_ns, uint64_t to_ns, double weight)
{
	const uint64_t history_ns = ring->count * ring->bucket_ns;

	if (to_ns > from_ns + history_ns)
		from_ns = to_ns - history_ns;
	advance(ring, (to_ns - 1) / ring->bucket_ns);
	while (from_ns < to_ns) {
		const uint64_t number = from_ns / ring->bucket_ns;
		const uint64_t end_ns = (number + 1) * ring->bucket_ns;
		const uint64_t upto_ns = to_ns < end_ns ? to_ns : end_ns;
		const double counts_ns = (double)(upto_ns - from_ns) * weight;

		add_to_bucket(&ring->buckets[number % ring->count],
			      parts_of((uint64_t)counts_ns, ring->bucket_ns));
		from_ns = upto_ns;
	}
}

static struct ring shorts_of(struct activity *page)
{
	return (struct ring){&page->newest_short, page->shorts, ACTIVITY_SHORTS, ACTIVITY_SHORT_NS};
}

static struct ring longs_of(struct activity *page)
{
	return (struct ring){&page->newest_long, page->longs, ACTIVITY_LONGS, ACTIVITY_LONG_NS};
}

void activity_sign(struct activity *page)
{
	atomic_store_explicit(&page->magic, ACTIVITY_MAGIC, memory_order_relaxed);
	atomic_store_explicit(&page->version, ACTIVITY_VERSION, memory_order_relaxed);
}

void activity_add(struct activity *page, uint64_t from_ns, uint64_t to_ns, uint64_t part_ns)
{
	const struct ring shorts = shorts_of(page), longs = longs_of(page);

	if (to_ns <= from_ns)
		return;
	const double weight = (double)part_ns / (double)(to_ns - from_ns);

	activity_sign(page);
	add_to_ring(&shorts, from_ns, to_ns, weight);
	add_to_ring(&longs, from_ns, to_ns, weight);
}

void activity_set_open(struct activity *page, unsigned place, uint64_t since_ns, uint64_t until_ns)
{
	struct activity_open *open = &page->open[place % ACTIVITY_OPEN];

	activity_sign(page);
	atomic_store_explicit(&open->since_ns, since_ns, memory_order_relaxed);
	atomic_store_explicit(&open->until_ns, until_ns, memory_order_release);
}

static uint64_t overlap_ns(uint64_t from_ns, uint64_t to_ns, const struct activity_open *open)
{
	const uint64_t since_ns = atomic_load_explicit(&open->since_ns, memory_order_relaxed);
	const uint64_t until_ns = atomic_load_explicit(&open->until_ns, memory_order_relaxed);

	if (!since_ns)
		return 0;
	from_ns = from_ns > since_ns ? from_ns : since_ns;
	to_ns = to_ns < until_ns ? to_ns : until_ns;
	return to_ns > from_ns ? to_ns - from_ns : 0;
}

struct activity_bucket activity_bucket_at(uint64_t moment_ns, uint64_t now_ns)
{
	/* Not the oldest: a writer may be ahead of us. */
	const uint64_t kept_ns = (ACTIVITY_SHORTS - 8) * ACTIVITY_SHORT_NS;
	const bool is_long = moment_ns + kept_ns < now_ns;
	const uint64_t bucket_ns = is_long ? ACTIVITY_LONG_NS : ACTIVITY_SHORT_NS;
	const uint64_t number = moment_ns / bucket_ns;

	return (struct activity_bucket){is_long, number, number * bucket_ns,
					(number + 1) * bucket_ns};
}

uint64_t activity_finished_ns(const struct activity *page, const struct activity_bucket *bucket)
{
	const uint64_t count = bucket->is_long ? ACTIVITY_LONGS : ACTIVITY_SHORTS;
	const uint64_t newest = atomic_load_explicit(
		bucket->is_long ? &page->newest_long : &page->newest_short, memory_order_relaxed);
	const _Atomic uint16_t *buckets = bucket->is_long ? page->longs : page->shorts;

	if (bucket->number > newest || newest - bucket->number >= count)
		return 0;
	return atomic_load_explicit(&buckets[bucket->number % count], memory_order_relaxed) *
	       (bucket->to_ns - bucket->from_ns) / ACTIVITY_ONE;
}

uint64_t activity_between(const struct activity *page, uint64_t from_ns, uint64_t to_ns,
			  uint64_t now_ns)
{
	uint64_t sum_ns = 0;

	for (; from_ns < to_ns; from_ns += ACTIVITY_SHORT_NS) {
		const struct activity_bucket bucket = activity_bucket_at(from_ns, now_ns);

		sum_ns += activity_finished_ns(page, &bucket);
	}
	return sum_ns;
}

uint32_t activity_in(const struct activity *page, const struct activity_bucket *bucket,
		     uint64_t now_ns, int skip)
{
	const uint64_t to_ns = now_ns < bucket->to_ns ? now_ns : bucket->to_ns;

	if (to_ns <= bucket->from_ns)
		return 0;
	uint64_t active_ns = activity_finished_ns(page, bucket);

	for (int i = 0; i < ACTIVITY_OPEN; i++)
		if (i != skip)
			active_ns += overlap_ns(bucket->from_ns, to_ns, &page->open[i]);
	return parts_of(active_ns, to_ns - bucket->from_ns);
}
