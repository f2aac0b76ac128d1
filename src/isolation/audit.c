/*
 * When work is charged, a neighbour may not have noticed yet that its own has
 * ended: its page then says how long it thinks that it will be there. Guesses
 * have a bias, and a bias is points of a share. So every charge is computed
 * once more, from what the pages say when everybody has long looked, and the
 * difference is charged or given back.
 */
#include "audit.h"

#include "credit.h"
#include "neighbours.h"

/* Longer than anybody naps with work on the card. */
#define AUDIT_AFTER_NS 20000000u
#define AUDIT_EVERY_NS 4000000u
#define AUDIT_OLDEST_NS 100000000u

void audit_note(struct meter *meter, uint64_t from_ns, uint64_t to_ns, uint64_t part_ns)
{
	activity_add_part(&meter->paid, from_ns, to_ns, part_ns);
}

void audit_run(struct meter *meter, uint64_t now_ns)
{
	uint64_t upto_ns = now_ns - AUDIT_AFTER_NS;
	int64_t due_ns = 0;

	if (meter->audited_ns + AUDIT_OLDEST_NS < now_ns)
		meter->audited_ns = now_ns - AUDIT_OLDEST_NS;
	if (meter->is_running && meter->cursor_ns < upto_ns)
		upto_ns = meter->cursor_ns;
	if (upto_ns < meter->audited_ns + AUDIT_EVERY_NS)
		return;
	for (;;) {
		const struct activity_bucket bucket = activity_bucket_at(meter->audited_ns, now_ns);

		if (bucket.is_long || bucket.to_ns > upto_ns)
			break;
		/* A begun bucket was audited by the last run up to its beginning. */
		due_ns += (int64_t)neighbours_our_part_in(meter->card, &bucket, now_ns,
							  meter->place, &meter->mine) -
			  (int64_t)activity_finished_ns(&meter->paid, &bucket);
		meter->audited_ns = bucket.to_ns;
	}
	credit_correct(meter->card, due_ns);
}
