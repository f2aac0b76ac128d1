/*
 * The processes of one slice: one at a time launches, in the slice's lease. Of those that wait the
 * one goes next that had least of the card, so each has an even part, whatever its kernels take.
 * All is in the slice's own region, where nobody else writes.
 */
#include "compute/compute.h"

#include "books/slice_region.h"

/* The word of a lease: until when, in units of 1,024 ns, and a process's slot. */
enum { SLOT_BITS = 8, UNIT_BITS = 10 };
_Static_assert(REGION_SLOTS == 1 << SLOT_BITS, "a slot has its place in the word");

/* So much less than one that was let go is far less. */
#define OWED_NS (CREDIT_IDLE_NS / 2)

static uint64_t until_of(uint64_t word)
{
	return word >> SLOT_BITS << UNIT_BITS;
}

static int slot_of(uint64_t word)
{
	return (int)(word % REGION_SLOTS);
}

static struct region_turns *of(int card)
{
	return &slice_region()->turns[card];
}

static uint64_t had_ns(int card, int slot)
{
	const int64_t out_ns = atomic_load(&slice_region()->cards[card].inflight_ns[slot]);

	return atomic_load(&of(card)->had_ns[slot]) + (out_ns > 0 ? (uint64_t)out_ns : 0);
}

void turns_spend(int card, uint64_t busy_ns)
{
	const int slot = slice_slot();

	if (slot >= 0)
		atomic_fetch_add(&of(card)->had_ns[slot], busy_ns);
}

void turns_want(int card, uint64_t until_ns)
{
	const int slot = slice_slot();

	if (slot >= 0 &&
	    atomic_load_explicit(&of(card)->want_until_ns[slot], memory_order_relaxed) != until_ns)
		atomic_store(&of(card)->want_until_ns[slot], until_ns);
}

static bool wants(int card, int slot, uint64_t now_ns)
{
	return slot != slice_slot() && atomic_load(&of(card)->want_until_ns[slot]) > now_ns;
}

static int slots(void)
{
	return slice_region()->slots_seen < REGION_SLOTS ? (int)slice_region()->slots_seen
							 : REGION_SLOTS;
}

bool turns_are_wanted(int card, uint64_t now_ns)
{
	int i = 0;

	while (i < slots() && !wants(card, i, now_ns))
		i++;
	return i < slots();
}

/*
 * `turn_ns`: the most card time of a process when it was let go. One that returns after a pause is
 * raised to nearly that. Of two updates at once one may be lost; the next one makes up for it.
 */
static void note_let_go(int card, int slot)
{
	_Atomic uint64_t *turn_ns = &slice_region()->cards[card].turn_ns;

	atomic_store(turn_ns, larger(atomic_load(turn_ns), atomic_load(&of(card)->had_ns[slot])));
}

bool turns_is_owed(int card)
{
	const int own = slice_slot();

	return own >= 0 &&
	       had_ns(card, own) + OWED_NS < atomic_load(&slice_region()->cards[card].turn_ns);
}

bool turns_yields(int card, bool to_holder, uint64_t now_ns)
{
	const uint64_t turn_ns = atomic_load(&slice_region()->cards[card].turn_ns);
	const uint64_t lease = atomic_load(&slice_region()->cards[card].lease);
	const int holder = to_holder && until_of(lease) > now_ns ? slot_of(lease) : -1;
	const int own = slice_slot();

	if (own < 0)
		return false;
	/* Who did not want the card for long has no more saved up than an idle slice has. */
	if (atomic_load(&of(card)->had_ns[own]) + CREDIT_IDLE_NS < turn_ns)
		atomic_store(&of(card)->had_ns[own], turn_ns - CREDIT_IDLE_NS);
	const uint64_t own_ns = had_ns(card, own);

	for (int i = 0; i < slots(); i++) {
		const uint64_t other_ns = had_ns(card, i);

		if ((wants(card, i, now_ns) || (i == holder && i != own)) &&
		    (other_ns < own_ns || (other_ns == own_ns && i < own)))
			return true;
	}
	if (to_holder)
		note_let_go(card, own);
	return false;
}

struct turns_lease turns_lease(int card)
{
	const uint64_t word = atomic_load(&slice_region()->cards[card].lease);

	return (struct turns_lease){
		.word = word, .until_ns = until_of(word), .is_own = slot_of(word) == slice_slot()};
}

bool turns_take(int card, uint64_t seen, uint64_t until_ns)
{
	const int slot = slice_slot();
	const uint64_t word = until_ns >> UNIT_BITS << SLOT_BITS | (uint64_t)slot;

	if (slot < 0)
		return true;
	if (!atomic_compare_exchange_strong(&slice_region()->cards[card].lease, &seen, word))
		return false;
	if (until_ns)
		note_let_go(card, slot);
	return true;
}
