/* Writing and reading activity pages; lock-free, since a writer may die anywhere. */
#include "activity.h"

#include <stdbool.h>

static uint32_t parts_of(uint64_t duration_ns, uint64_t whole_ns)
{
	return (uint32_t)(duration_ns * ACTIVITY_ONE / whole_ns);
}

/* Empties the buckets since the newest one, which hold the last round of the ring. */
static void advance(struct activity *page, uint64_t number)
{
	uint64_t cleared = atomic_load(&page->cleared);

	do {
		if (cleared >= number)
			return;
	} while (!atomic_compare_exchange_weak(&page->cleared, &cleared, number));
	if (number - cleared > ACTIVITY_BUCKETS)
		cleared = number - ACTIVITY_BUCKETS;
	while (cleared++ < number)
		atomic_store_explicit(&page->buckets[cleared % ACTIVITY_BUCKETS], 0,
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

void activity_add(struct activity *page, uint64_t from_ns, uint64_t to_ns)
{
	if (to_ns <= from_ns)
		return;
	atomic_store_explicit(&page->magic, ACTIVITY_MAGIC, memory_order_relaxed);
	if (to_ns > from_ns + ACTIVITY_HISTORY_NS)
		from_ns = to_ns - ACTIVITY_HISTORY_NS;
	advance(page, (to_ns - 1) / ACTIVITY_BUCKET_NS);
	while (from_ns < to_ns) {
		const uint64_t number = from_ns / ACTIVITY_BUCKET_NS;
		const uint64_t end_ns = (number + 1) * ACTIVITY_BUCKET_NS;
		const uint64_t upto_ns = to_ns < end_ns ? to_ns : end_ns;

		add_to_bucket(&page->buckets[number % ACTIVITY_BUCKETS],
			      parts_of(upto_ns - from_ns, ACTIVITY_BUCKET_NS));
		from_ns = upto_ns;
	}
}

void activity_set_open(struct activity *page, unsigned place, uint64_t since_ns, uint64_t until_ns)
{
	struct activity_open *open = &page->open[place % ACTIVITY_OPEN];

	atomic_store_explicit(&page->magic, ACTIVITY_MAGIC, memory_order_relaxed);
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

uint32_t activity_in(const struct activity *page, uint64_t bucket, uint64_t now_ns, int skip)
{
	const uint64_t from_ns = bucket * ACTIVITY_BUCKET_NS;
	const uint64_t newest = atomic_load_explicit(&page->cleared, memory_order_relaxed);
	uint64_t to_ns = from_ns + ACTIVITY_BUCKET_NS;
	uint64_t active_ns = 0;

	if (now_ns < to_ns)
		to_ns = now_ns;
	if (to_ns <= from_ns)
		return 0;
	if (bucket <= newest && newest - bucket < ACTIVITY_BUCKETS)
		active_ns = atomic_load_explicit(&page->buckets[bucket % ACTIVITY_BUCKETS],
						 memory_order_relaxed) *
			    ACTIVITY_BUCKET_NS / ACTIVITY_ONE;
	for (int i = 0; i < ACTIVITY_OPEN; i++)
		if (i != skip)
			active_ns += overlap_ns(from_ns, to_ns, &page->open[i]);
	return parts_of(active_ns, to_ns - from_ns);
}
