/*
 * Leases. A slice that wants the card says so on its page. It starts when nobody holds the card or
 * has work out, and nobody who wants it is before it. Then it alone launches, for some
 * milliseconds, and only what ends within the lease; a launch that is longer goes first in a
 * lease, and alone. The lease ends with its time, with the slice's credit, or when the slice had
 * nothing on the card for a moment.
 *
 * The processes of a slice have its lease one after the other (compute/turns.c).
 *
 * Next is who has the most credit for its share. Credit grows at the same pace for all who wait,
 * so the key (credit over share, less the time) stands still meanwhile.
 *
 * Pages are believed within bounds, since a container writes its own: a claim or a place before us
 * for 100 ms, and by a slice that lacks 100 ms of its share not at all. A slice with work out on
 * another card waits 20 ms: two jobs that wait for each other over two cards must not stop each
 * other.
 */
#include "compute/compute.h"

#include "books/slice_region.h"
#include "slice/slice.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEASE_NS 8000000u
/* Credit to ask with: each change of process costs time. */
#define NEED_NS 5000000
/* Of a process that had far less of the slice's share than the others. */
#define NEED_OWED_NS 1000000
/* With so much more credit than the holder a slice that waits has the card at once, */
#define OWED_NS 20000000
/* as it is seen so often. */
#define OWED_EVERY_NS 1000000u
/* Idle for so long, the holder has given its lease up. */
#define LAPSE_NS 200000u

#define CLAIM_MOST_NS 100000000u
#define OVERDUE_NS 100000000
#define ELSEWHERE_NS 20000000u
/* Longer than leases and most kernels: who waits so long keeps what it earns. */
#define KEPT_NS 30000000u

/* Who did nothing for so long does not want the card. */
#define ALONE_NS 50000000u

#define WANT_NS 1000000u
#define NAP_LEAST_NS 100000u
#define NAP_MOST_NS 1000000u
/* A holder may give up early. */
#define NAP_BLOCKED_NS 250000u

#define SCAN_EVERY_NS 500000000ull
#define LOOK_EVERY_NS 4000000u
#define BESIDE_EVERY_NS 2000000u

/* More slices than the agent places on a card. */
enum { NEIGHBOURS = 31 };

struct neighbour {
	int fd;
	dev_t device;
	ino_t inode;
	uint64_t claim_ns, claimed_until_ns; /* since when it claims the card by this lease */
};

static struct card {
	uint64_t scanned_ns, looked_ns, seen_ns; /* 0: never */
	unsigned beside;                         /* at work without leases */
	unsigned count;
	struct neighbour own; /* another process of the slice */
	struct neighbour neighbours[NEIGHBOURS];
} cards[LIMITS_CARDS];

/* What the pages say at a moment. */
struct view {
	uint64_t blocked_until_ns; /* somebody has the card; 0: nobody */
	bool is_outranked;         /* somebody who waits is before us */
};

/* Clients of an MPS server are on the card at once: nobody is alone there. */
static bool is_off(void)
{
	static atomic_int answer; /* 0: not asked, 1: yes, 2: no */
	int known = atomic_load_explicit(&answer, memory_order_relaxed);
	char path[300];

	if (known)
		return known == 1;
	const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY"); // NOLINT(concurrency-mt-unsafe)

	(void)snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid",
		       directory ? directory : "/tmp/nvidia-mps");
	known = access(path, F_OK) == 0 ? 1 : 2;
	atomic_store(&answer, known);
	return known == 1;
}

/* The number may by now be another file's: an application may have closed it under us. */
static bool is_still(const struct neighbour *neighbour)
{
	struct stat status;

	return fstat(neighbour->fd, &status) == 0 && status.st_dev == neighbour->device &&
	       status.st_ino == neighbour->inode;
}

/* More than there are places for are left out. */
static void add_page(int fd, void *argument)
{
	struct card *card = argument;
	struct stat status;

	if (card->count == NEIGHBOURS || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
		close(fd);
		return;
	}
	for (unsigned i = 0; i < card->count; i++)
		if (card->neighbours[i].fd < 0 && card->neighbours[i].inode == status.st_ino) {
			card->neighbours[i].fd = fd;
			return;
		}
	card->neighbours[card->count++] =
		(struct neighbour){.fd = fd, .device = status.st_dev, .inode = status.st_ino};
}

/* Slices come and go; what is known of those that stay is kept. */
static void scan(int number, uint64_t now_ns)
{
	struct card *card = &cards[number];
	unsigned kept = 0;

	for (unsigned i = 0; i < card->count; i++) {
		if (is_still(&card->neighbours[i]))
			close(card->neighbours[i].fd);
		card->neighbours[i].fd = -1;
	}
	activity_each_neighbour(number, add_page, card);
	for (unsigned i = 0; i < card->count; i++)
		if (card->neighbours[i].fd >= 0)
			card->neighbours[kept++] = card->neighbours[i];
	card->count = kept;
	card->scanned_ns = now_ns;
}

/* Until when it has the card; 0: it has not, or says so for too long. */
static uint64_t claimed_until(struct neighbour *neighbour, const struct activity *head,
			      uint64_t now_ns)
{
	const uint64_t held_ns = smaller(head->hold_until_ns, head->out_until_ns + LAPSE_NS);
	const uint64_t until_ns = larger(held_ns, head->out_until_ns);

	if (until_ns <= now_ns) {
		neighbour->claim_ns = 0;
		return 0;
	}
	if (!neighbour->claim_ns || neighbour->claimed_until_ns != head->hold_until_ns) {
		neighbour->claim_ns = now_ns;
		neighbour->claimed_until_ns = head->hold_until_ns;
	}
	return now_ns - neighbour->claim_ns < CLAIM_MOST_NS
		       ? smaller(until_ns, neighbour->claim_ns + CLAIM_MOST_NS)
		       : 0;
}

static void see(struct card *card, struct neighbour *neighbour, struct view *view, int64_t key,
		uint64_t now_ns)
{
	struct activity head;

	/* Never mapped: a neighbour may cut its file off. */
	if (pread(neighbour->fd, &head, ACTIVITY_HEAD_BYTES, 0) != ACTIVITY_HEAD_BYTES ||
	    head.magic != ACTIVITY_MAGIC)
		return;
	if (head.version < ACTIVITY_VERSION || !head.takes_leases) {
		card->beside += head.out_until_ns > now_ns;
		return;
	}
	const uint64_t until_ns = claimed_until(neighbour, &head, now_ns);

	view->blocked_until_ns = larger(view->blocked_until_ns, until_ns);
	if (head.want_until_ns > now_ns && head.want_until_ns < now_ns + CLAIM_MOST_NS &&
	    head.key > key)
		view->is_outranked = true;
	card->seen_ns =
		larger(card->seen_ns, smaller(now_ns, larger(until_ns, head.want_until_ns)));
}

static struct view look(int number, int64_t key, uint64_t now_ns)
{
	struct card *card = &cards[number];
	struct view view = {0};

	if (!card->scanned_ns || now_ns - card->scanned_ns >= SCAN_EVERY_NS)
		scan(number, now_ns);
	card->looked_ns = now_ns;
	card->beside = 0;
	for (unsigned i = 0; i < card->count; i++)
		see(card, &card->neighbours[i], &view, key, now_ns);
	return view;
}

static bool is_alone(int number, uint64_t now_ns)
{
	if (now_ns - cards[number].looked_ns >= LOOK_EVERY_NS)
		(void)look(number, INT64_MAX, now_ns);
	return !cards[number].beside && now_ns - cards[number].seen_ns >= ALONE_NS;
}

bool lease_is_free(int card, uint64_t now_ns)
{
	return slice_limits()->policy == POLICY_WORK_CONSERVING && is_alone(card, now_ns);
}

unsigned lease_beside(int card, uint64_t now_ns)
{
	if (cards[card].count && now_ns - cards[card].looked_ns >= BESIDE_EVERY_NS)
		(void)look(card, INT64_MAX, now_ns);
	return cards[card].beside + (is_off() ? credit_others(card) : 0);
}

static void sign(struct activity *page, bool takes_leases)
{
	atomic_store_explicit(&page->magic, ACTIVITY_MAGIC, memory_order_relaxed);
	atomic_store_explicit(&page->version, ACTIVITY_VERSION, memory_order_relaxed);
	atomic_store_explicit(&page->takes_leases, takes_leases, memory_order_relaxed);
	atomic_store_explicit(&page->is_told, 1, memory_order_relaxed);
}

/* Kernels that are out, and the copies that they wait for; others keep nobody up. */
static uint64_t out_of(const struct meter *meter, int64_t inflight_ns)
{
	return (uint64_t)inflight_ns + (inflight_ns && !meter->is_mixed ? meter->copies_ns : 0);
}

static bool holds(const struct activity *page, uint64_t now_ns)
{
	return atomic_load_explicit(&page->hold_until_ns, memory_order_relaxed) &&
	       atomic_load_explicit(&page->out_until_ns, memory_order_relaxed) + LAPSE_NS > now_ns;
}

void lease_tell(const struct meter *meter, uint64_t now_ns)
{
	const uint64_t out_ns = out_of(meter, credit_inflight(meter->card));
	const uint64_t more_ns = out_ns ? larger(meter->more_ns, out_ns / 8) : 0;
	struct activity *page = activity_own_page(meter->card);

	/* By now a neighbour may have the card. */
	if (!holds(page, now_ns))
		atomic_store(&page->hold_until_ns, 0);
	/* What takes longer than its mean is still waited for. */
	atomic_store_explicit(&page->out_until_ns, now_ns + out_ns + more_ns, memory_order_release);
}

void lease_tell_without(int card, uint64_t until_ns)
{
	struct activity *page = activity_own_page(card);

	sign(page, false);
	atomic_store(&page->out_until_ns, until_ns);
}

static bool is_elsewhere(int card)
{
	for (unsigned i = 0; i < slice_limits()->card_count; i++)
		if ((int)i != card && credit_inflight((int)i) > 0)
			return true;
	return false;
}

static uint64_t between(uint64_t least, uint64_t value, uint64_t most)
{
	return value < least ? least : smaller(value, most);
}

/* Until when another process of the slice has the card; believed as neighbours are. */
static uint64_t own_until(int card, const struct turns_lease *lease, uint64_t now_ns)
{
	const struct activity head = {.hold_until_ns = lease->until_ns,
				      .out_until_ns = activity_own_page(card)->out_until_ns};

	if (lease->is_own) {
		cards[card].own.claim_ns = 0;
		return 0;
	}
	return claimed_until(&cards[card].own, &head, now_ns);
}

/* Where another process has the lease, it is that one's to give up. */
static void give_up(int card, const struct turns_lease *lease)
{
	struct activity *page = activity_own_page(card);

	if (lease->is_own && lease->until_ns && turns_take(card, lease->word, 0)) {
		atomic_store(&page->hold_until_ns, 0);
		atomic_store(&page->want_until_ns, 0);
	}
}

/* It waits for others, without a lease, and says so. */
static uint64_t want(struct activity *page, int64_t key, uint64_t nap_ns, uint64_t now_ns)
{
	atomic_store(&page->hold_until_ns, 0);
	atomic_store_explicit(&page->key, key, memory_order_relaxed);
	atomic_store(&page->want_until_ns, now_ns + nap_ns + WANT_NS);
	return nap_ns;
}

/* A new lease, or the next in a row. */
static uint64_t take(struct meter *meter, struct meter_launch *launch,
		     const struct turns_lease *lease, int64_t worth_ns, uint64_t out_ns)
{
	const uint64_t now_ns = launch->now_ns;
	const int card = meter->card;
	struct activity *page = activity_own_page(card);
	const int64_t key = worth_ns - (int64_t)now_ns;
	const struct view view = look(card, key, now_ns);

	if (view.blocked_until_ns > now_ns)
		return want(page, key,
			    between(NAP_LEAST_NS, view.blocked_until_ns - now_ns, NAP_BLOCKED_NS),
			    now_ns);
	if (view.is_outranked && now_ns - launch->blocked_ns < OVERDUE_NS)
		return want(page, key, between(NAP_LEAST_NS, out_ns, NAP_BLOCKED_NS), now_ns);
	const bool is_by_itself = is_alone(card, now_ns);
	const uint64_t until_ns = now_ns + LEASE_NS + (is_by_itself ? out_ns : 0);

	if (out_ns && out_ns + launch->estimate.mean_ns > LEASE_NS && !is_by_itself)
		return between(NAP_LEAST_NS, out_ns / 2, NAP_MOST_NS);
	atomic_store(&page->out_until_ns, larger(now_ns, page->out_until_ns));
	if (!turns_take(card, lease->word, until_ns))
		return NAP_LEAST_NS;
	atomic_store(&page->hold_until_ns, until_ns);
	/* Somebody else may have taken it at the same moment: then both ask again. */
	if (cards[card].count && look(card, key, now_ns).blocked_until_ns > now_ns)
		return want(page, key, NAP_LEAST_NS, now_ns);
	atomic_store(&page->want_until_ns, 0);
	launch->is_fresh = !lease->is_own || !is_by_itself;
	return 0;
}

/* Waits for others' long kernels, or has the card at last and uses what it saved meanwhile. */
static bool is_kept_waiting(int card, const struct meter_launch *launch,
			    const struct turns_lease *lease)
{
	const bool has_saved = credit_balance(card) > CREDIT_IDLE_NS;

	return launch->blocked_ns ? has_saved || launch->now_ns - launch->blocked_ns > KEPT_NS
				  : has_saved && lease->is_own && lease->until_ns > launch->now_ns;
}

/* The lease, where it is the turn of this process. */
static uint64_t take_turn(struct meter *meter, struct meter_launch *launch,
			  const struct turns_lease *lease, int64_t credit_ns, uint64_t out_ns)
{
	const int card = meter->card;
	const uint64_t now_ns = launch->now_ns;
	const int64_t percent = slice_limits()->cards[card].core_percent;
	struct activity *page = activity_own_page(card);
	const int64_t worth_ns = credit_ns * 100 / percent;
	const bool is_overdue = worth_ns - (int64_t)NEED_NS * 100 / percent > OVERDUE_NS;

	if (!launch->blocked_ns)
		launch->blocked_ns = now_ns;
	const bool is_crossed = now_ns - launch->blocked_ns >= ELSEWHERE_NS && is_elsewhere(card);
	const uint64_t until_ns = own_until(card, lease, now_ns);

	if (!is_crossed && until_ns > now_ns)
		return between(NAP_LEAST_NS, until_ns - now_ns, NAP_BLOCKED_NS);
	if (!is_crossed && turns_yields(card, false, now_ns)) {
		give_up(card, lease);
		return NAP_LEAST_NS;
	}
	if (is_overdue || is_crossed) {
		(void)turns_take(card, lease->word, now_ns + LEASE_NS);
		atomic_store(&page->want_until_ns, 0);
		atomic_store(&page->out_until_ns, larger(now_ns, page->out_until_ns));
		atomic_store(&page->hold_until_ns, now_ns + LEASE_NS);
		return 0;
	}
	return take(meter, launch, lease, worth_ns, out_ns);
}

/* Does a slice that waits lack far more of its share? */
static bool owes(int card, int64_t key, uint64_t now_ns)
{
	return cards[card].count && now_ns - cards[card].looked_ns >= OWED_EVERY_NS &&
	       look(card, key + OWED_NS, now_ns).is_outranked;
}

static uint64_t ask(struct meter *meter, struct meter_launch *launch)
{
	const int card = meter->card;
	const struct turns_lease lease = turns_lease(card);
	const uint64_t now_ns = launch->now_ns;
	const int64_t percent = slice_limits()->cards[card].core_percent;
	struct activity *page = activity_own_page(card);
	const int64_t inflight_ns = credit_inflight(card);
	const uint64_t out_ns = out_of(meter, inflight_ns);

	const bool is_free = lease_is_free(card, now_ns);
	const bool is_out = out_ns && (!charge_is_over(meter, now_ns) || credit_others(card));

	credit_earn(card, (is_out || is_kept_waiting(card, launch, &lease)) && !is_free, now_ns);
	sign(page, !is_off());
	if (is_free)
		return 0;
	/* A kernel does not wait for a copy to be paid for that may go on beside it. */
	const int64_t credit_ns = credit_saved(card) - inflight_ns +
				  (launch->is_copy ? 0 : (int64_t)meter->copies_ns);

	if (credit_ns <= 0) {
		give_up(card, &lease);
		return between(NAP_LEAST_NS, (uint64_t)(-credit_ns * 100 / percent), NAP_MOST_NS);
	}
	/*
	 * Copies do not disturb others' kernels. Those of who launches kernels go beside these, and
	 * the first of a kind by themselves: two loops that begin together know then what one
	 * takes.
	 */
	if (is_off())
		return 0;
	if (launch->is_copy && launch->estimate.is_known && now_ns - meter->kernel_ns >= ALONE_NS)
		return turns_yields(card, true, now_ns) ? NAP_LEAST_NS : 0;
	const bool is_holder = lease.is_own && holds(page, now_ns) &&
			       (credit_ns >= 2 * (int64_t)NEED_NS ||
				!owes(card, credit_ns * 100 / percent - (int64_t)now_ns, now_ns));
	const int64_t need_ns = turns_is_owed(card) ? NEED_OWED_NS : NEED_NS;

	if (is_holder && now_ns + out_ns + launch->estimate.mean_ns <= page->hold_until_ns)
		return 0;
	if (!is_holder && credit_ns < need_ns &&
	    (!is_alone(card, now_ns) || turns_are_wanted(card, now_ns))) {
		give_up(card, &lease);
		return between(NAP_LEAST_NS, (uint64_t)((need_ns - credit_ns) * 100 / percent),
			       NAP_MOST_NS);
	}
	return take_turn(meter, launch, &lease, credit_ns, out_ns);
}

uint64_t lease_wait_ns(struct meter *meter, struct meter_launch *launch)
{
	const uint64_t nap_ns = ask(meter, launch);

	turns_want(meter->card, nap_ns ? launch->now_ns + nap_ns + WANT_NS : 0);
	return nap_ns;
}
