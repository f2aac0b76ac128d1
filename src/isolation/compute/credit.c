/*
 * Post-paid: a launch needs a positive balance, not the price of the launch, so
 * a long kernel runs as soon as a short one would and pays its debt before the
 * next. What is launched but not yet measured counts at its estimate.
 */
#include "compute/compute.h"

#include "books/region.h"
#include "books/slice_region.h"
#include "slice/slice.h"

/* At first: no window should show a lease too much. */
#define FIRST_NS 2000000LL
/* Saved up while neighbours keep the card from us: theirs to give back. */
#define BUSY_LIMIT_NS 1000000000LL
/* Shorter busy periods wait for the next time. */
#define EARN_EVERY_NS 20000u

/* More than a day is nobody's debt, savings or work: somebody wrote over the region. */
#define NEVER_NS 86400000000000LL
/* Nobody's clock is so far behind another's. */
#define AHEAD_NS 60000000000ull

static int64_t believed(int64_t number_ns)
{
	return number_ns > -NEVER_NS && number_ns < NEVER_NS ? number_ns : 0;
}

static struct region_card *books(int card)
{
	return &slice_region()->cards[card];
}

bool credit_is_capped(int card)
{
	return card >= 0 && slice_limits()->cards[card].core_percent < 100 &&
	       slice_limits()->policy != POLICY_NATIVE;
}

/* Adds `earned`, up to `limit`, and never takes what is beyond it away. */
static void add(struct region_card *card, int64_t earned, int64_t limit)
{
	int64_t old = atomic_load(&card->credit_ns);
	int64_t fresh;

	do {
		const int64_t base = believed(old);

		if (old == base && base >= limit)
			return;
		fresh = earned > limit - base ? limit : base + earned;
	} while (!atomic_compare_exchange_weak(&card->credit_ns, &old, fresh));
}

void credit_earn(int card, bool is_busy, uint64_t now_ns)
{
	struct region_card *own = books(card);
	uint64_t last_ns = atomic_load(&own->refilled_ns);

	/* One process pays each span of time; dying in between loses that span. */
	if ((now_ns < last_ns + EARN_EVERY_NS && last_ns < now_ns + AHEAD_NS) ||
	    !atomic_compare_exchange_strong(&own->refilled_ns, &last_ns, now_ns))
		return;
	slice_follow_limits();
	const uint32_t percent = slice_limits()->cards[card].core_percent;

	if (!last_ns) {
		add(own, FIRST_NS, FIRST_NS);
		return;
	}
	const uint64_t passed_ns = now_ns > last_ns ? now_ns - last_ns : 0;

	add(own, (int64_t)(passed_ns / 100 * percent + passed_ns % 100 * percent / 100),
	    is_busy ? BUSY_LIMIT_NS : CREDIT_IDLE_NS);
}

void credit_spend(int card, uint64_t busy_ns, bool is_free)
{
	if (!is_free)
		atomic_fetch_sub(&books(card)->credit_ns, (int64_t)busy_ns);
	turns_spend(card, busy_ns);
	atomic_fetch_add(&books(card)->busy_ns, busy_ns);
}

void credit_put_out(int card, int64_t kernels_ns, int64_t copies_ns)
{
	const int slot = slice_slot();

	if (slot >= 0)
		atomic_fetch_add(&books(card)->inflight_ns[slot], kernels_ns);
	if (copies_ns)
		atomic_fetch_sub(&books(card)->credit_ns, copies_ns);
}

int64_t credit_inflight(int card)
{
	const struct region *region = slice_region();
	int64_t sum = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++) {
		const int64_t one =
			atomic_load_explicit(&books(card)->inflight_ns[i], memory_order_relaxed);

		sum += one > 0 ? believed(one) : 0;
	}
	return sum;
}

unsigned credit_others(int card)
{
	const struct region *region = slice_region();
	unsigned count = 0;

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++)
		count += (int)i != slice_slot() &&
			 atomic_load_explicit(&books(card)->inflight_ns[i], memory_order_relaxed) >
				 0;
	return count;
}

int64_t credit_saved(int card)
{
	return believed(atomic_load(&books(card)->credit_ns));
}

int64_t credit_balance(int card)
{
	return credit_saved(card) - credit_inflight(card);
}

void credit_note_wait(int card, uint64_t waited_ns)
{
	atomic_fetch_add(&books(card)->throttled_ns, waited_ns);
}
