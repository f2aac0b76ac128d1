/*
 * Launches paid ahead. To ask for one costs two questions to the driver, two clocks and two pairs
 * of locks. So a thread that may launch, and is the only one that does, gets the next launches up
 * to an event with it: they count as launched from then on, for neighbours and for this slice.
 * Each of them costs the thread a clock and a look at a table of its own. When it asks again, or
 * waits, it gives back what it did not launch.
 *
 * They are of known kinds, and of each no more than come before its next sample. Lease and credit
 * are exceeded by no more than an event's work. What an event has taken over, with the launches
 * that were paid, is the event's: then the thread asks.
 */
#include "compute/compute.h"

#include "driver/stream.h"
#include "driver/timer.h"

#include <string.h>

/* Kinds that a thread may launch in turn without asking; each is in one of so many places. */
enum { KINDS_BITS = 6, KINDS = 1 << KINDS_BITS, PROBES = 4 };

/* So long after the last should be over none is launched: the lease may be another's soon. */
#define AFTER_NS 100000u

/* Where threads take turns, what one did not launch would be known of others' work. */
enum { IN_A_ROW = 1024 };

struct kind {
	uint64_t what, mean_ns, worst_ns;
	uint32_t left, used; /* up to its next sample, and since that was asked */
};

static __thread struct {
	struct meter *meter; /* it may be gone */
	CUcontext context;
	CUstream stream;
	int card;
	uint64_t number;            /* the card's when they were paid; 0: there are none */
	uint64_t until_ns, last_ns; /* no later, and the last was launched */
	uint64_t what;              /* of the last */
	uint64_t mean_ns, worst_ns; /* left */
	uint32_t launches;
	uint64_t used; /* which kinds were, a bit each */
	struct kind kinds[KINDS];
} own;
_Static_assert(KINDS <= 64, "a kind has its bit");

/* Where it is, or where it goes. */
static struct kind *kind_of(uint64_t what)
{
	const uint32_t first = place_of(what, KINDS_BITS);

	for (uint32_t i = first; i < first + PROBES; i++)
		if (own.kinds[i % KINDS].what == what || !own.kinds[i % KINDS].what)
			return &own.kinds[i % KINDS];
	return &own.kinds[first];
}

bool ahead_takes(uint64_t what, CUstream stream)
{
	if (!own.launches || own.stream != stream || events_number(own.card) != own.number ||
	    (stream_is_default(stream) && scope_context(stream) != own.context))
		return false;
	struct kind *kind = kind_of(what);

	if (kind->what != what || !kind->left || kind->mean_ns > own.mean_ns ||
	    kind->worst_ns > own.worst_ns)
		return false;
	const uint64_t now_ns = timer_now_ns();

	if (now_ns > own.until_ns)
		return false;
	own.last_ns = now_ns;
	own.what = what;
	own.mean_ns -= kind->mean_ns;
	own.worst_ns -= kind->worst_ns;
	own.launches--;
	own.used |= 1ull << (kind - own.kinds);
	kind->left--;
	kind->used++;
	return true;
}

static void learn(struct meter *meter, struct kind *kind)
{
	const struct estimate estimate = estimate_of(meter, kind->what);

	kind->mean_ns = estimate.mean_ns;
	kind->worst_ns = estimate.worst_ns;
	kind->left = estimate_unsampled(meter, kind->what, kind->used);
	kind->used = 0;
}

void ahead_note_launch(struct meter *meter)
{
	if (meter->thread != &own)
		meter->in_a_row = 0;
	meter->thread = &own;
	meter->in_a_row += meter->in_a_row < IN_A_ROW;
}

void ahead_pay(struct meter *meter, const struct meter_launch *launch, uint32_t most_launches,
	       uint64_t most_ns)
{
	const struct estimate *estimate = &launch->estimate;

	if (meter->in_a_row < IN_A_ROW || meter->is_mixed || launch->is_copy || !estimate->is_known)
		return;
	own.launches = (uint32_t)smaller(most_launches, most_ns / estimate->mean_ns);
	if (!own.launches)
		return;
	/* One function may be of several contexts, and take another time there. */
	if (own.meter != meter)
		memset(own.kinds, 0, sizeof(own.kinds));
	struct kind *kind = kind_of(launch->what);

	if (kind->what != launch->what)
		*kind = (struct kind){.what = launch->what};
	learn(meter, kind);
	own.meter = meter;
	own.context = meter->context;
	own.stream = launch->stream;
	own.card = meter->card;
	own.number = events_number(meter->card);
	own.last_ns = launch->now_ns;
	own.what = launch->what;
	own.mean_ns = own.launches * estimate->mean_ns;
	own.worst_ns = own.launches * estimate->worst_ns;
	charge_out(meter, (int64_t)own.mean_ns, 0, (int64_t)own.worst_ns);
	meter->tail.ahead = own.number;
	meter->tail.mean_ns += own.mean_ns;
	meter->tail.worst_ns += own.worst_ns;
	meter->tail.launches += own.launches;
	own.until_ns = launch->now_ns + meter->out_ns + AFTER_NS;
	lease_tell(meter, launch->now_ns);
}

/* The card's number goes on with each tail, the tails of other contexts among them. */
static bool is_in_tail(void)
{
	const struct meter *meter = events_first(own.card);

	while (meter && meter != own.meter)
		meter = meter->next;
	return meter && meter->tail.ahead == own.number;
}

void ahead_forget(void)
{
	own.number = own.launches = 0;
}

void ahead_give_back(void)
{
	struct meter *meter = own.meter;

	if (!own.number)
		return;
	events_lock(own.card);
	if (is_in_tail()) {
		charge_out(meter, -(int64_t)own.mean_ns, 0, -(int64_t)own.worst_ns);
		meter->tail.ahead = 0;
		meter->tail.mean_ns -= own.mean_ns;
		meter->tail.worst_ns -= own.worst_ns;
		meter->tail.launches -= own.launches;
		meter->tail.what = own.what;
		meter->launched_ns = meter->tail.ended_ns = own.last_ns;
		for (; own.used; own.used &= own.used - 1)
			learn(meter, &own.kinds[__builtin_ctzll(own.used)]);
	}
	events_unlock(own.card);
	ahead_forget();
}
