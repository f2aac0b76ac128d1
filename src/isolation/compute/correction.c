/*
 * When work is charged, a neighbour may not have noticed yet that its own has
 * ended: its page then says how long it thinks that it will be there. Guesses
 * have a bias, and a bias is points of a share. So every charge is computed
 * once more, from what the pages say when everybody has long looked, and the
 * difference is charged or given back.
 */
#include "compute/correction.h"

#include "compute/credit.h"
#include "compute/neighbours.h"

/* Longer than anybody naps with work on the card. */
#define CORRECT_AFTER_NS 20000000u
/* Not beyond the short buckets. */
#define CORRECT_OLDEST_NS 110000000u

/* Several rounds of turns: within one, a tenant may have had one turn more than another. */
#define WINDOW_NS (2 * ACTIVITY_LONG_NS)

/*
 * A claim is spread over all the time in which its kernels ran or waited. So what nobody claims
 * at one moment may be what was paid too much at another, and counts only beyond that.
 */
#define SPREAD_NS 20000000

void correction_note(struct meter *meter, uint64_t from_ns, uint64_t to_ns, uint64_t part_ns,
		     bool is_sure)
{
	activity_add(is_sure ? &meter->sure_there : &meter->there, from_ns, to_ns, to_ns - from_ns);
	activity_add(is_sure ? &meter->sure_paid : &meter->paid, from_ns, to_ns, part_ns);
}

/* Kernels took longer than known: what nobody else claims was theirs. */
static int64_t left_over(struct meter *meter, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns)
{
	const struct neighbours_share share =
		neighbours_share_again(meter, &meter->sure_there, from_ns, to_ns, now_ns);
	const uint64_t paid_ns = activity_between(&meter->sure_paid, from_ns, to_ns, now_ns);

	meter->left_ns += (int64_t)share.left_ns - (int64_t)paid_ns;
	const int64_t more_ns = meter->left_ns > 0 ? meter->left_ns : 0;

	meter->left_ns -= more_ns;
	if (meter->left_ns < -SPREAD_NS)
		meter->left_ns = -SPREAD_NS;
	return more_ns;
}

/* What the pages say now, less what was charged. */
static int64_t due_in(struct meter *meter, uint64_t from_ns, uint64_t to_ns, uint64_t now_ns)
{
	const struct neighbours_share share =
		neighbours_share_again(meter, &meter->there, from_ns, to_ns, now_ns);

	return (int64_t)share.part_ns -
	       (int64_t)activity_between(&meter->paid, from_ns, to_ns, now_ns) +
	       left_over(meter, from_ns, to_ns, now_ns);
}

void correction_run(struct meter *meter, uint64_t now_ns)
{
	uint64_t upto_ns = now_ns - CORRECT_AFTER_NS;
	int64_t due_ns = 0;

	if (meter->corrected_ns + CORRECT_OLDEST_NS < now_ns)
		meter->corrected_ns =
			(now_ns - CORRECT_OLDEST_NS) / ACTIVITY_LONG_NS * ACTIVITY_LONG_NS;
	if (meter->is_running && meter->cursor_ns < upto_ns)
		upto_ns = meter->cursor_ns;
	for (; meter->corrected_ns + WINDOW_NS <= upto_ns; meter->corrected_ns += WINDOW_NS)
		due_ns +=
			due_in(meter, meter->corrected_ns, meter->corrected_ns + WINDOW_NS, now_ns);
	credit_spend(meter->card, due_ns);
}
