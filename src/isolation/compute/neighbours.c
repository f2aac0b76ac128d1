/*
 * Reading the activity of the slices beside us. Their files are read with
 * pread, never mapped: a neighbour that cuts its file off must not kill us.
 */
#include "compute/neighbours.h"

#include "books/slice_region.h"
#include "compute/events.h"
#include "driver/timer.h"
#include "slice/limits.h"
#include "slice/slice.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a page may claim, in processes: a container can write anything into its own. */
enum { NEIGHBOURS = 31, CLAIMED_MOST = 4 };

#define LATELY_NS 1024000ull

/* So little is rounding. */
enum { AWAY = ACTIVITY_ONE / 256 };

/* What is out may last so much longer than its slice says, which tells when it has ended. */
enum { OUT_TIMES_MORE = 3 };
#define OUT_MORE_NS 200000000u

#define SCAN_EVERY_NS 500000000ull
#define LOOK_EVERY_NS 500000ull

struct neighbour {
	int fd;
	dev_t device;
	ino_t inode;
	struct activity page; /* as last read */
};

struct card_pages {
	uint64_t scanned_ns, looked_ns; /* 0: never */
	unsigned count;
	struct neighbour *neighbours; /* NEIGHBOURS of them, made at the first look */
};

static struct card_pages pages_of[LIMITS_CARDS];

/* The number may by now be another file's: an application may have closed it under us. */
static bool is_still(const struct neighbour *neighbour)
{
	struct stat status;

	return fstat(neighbour->fd, &status) == 0 && status.st_dev == neighbour->device &&
	       status.st_ino == neighbour->inode;
}

static void close_pages(struct card_pages *pages)
{
	for (unsigned i = 0; i < pages->count; i++)
		if (is_still(&pages->neighbours[i]))
			close(pages->neighbours[i].fd);
	pages->count = 0;
}

/* More than there are places for are left out. */
static void add_page(int fd, void *argument)
{
	struct card_pages *pages = argument;
	struct stat status;

	if (pages->count == NEIGHBOURS || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
		close(fd);
		return;
	}
	struct neighbour *neighbour = &pages->neighbours[pages->count++];

	neighbour->fd = fd;
	neighbour->device = status.st_dev;
	neighbour->inode = status.st_ino;
}

/* From the files, if the last look is old; what cannot be read or is none of ours counts as idle.
 */
static const struct card_pages *look(int card, uint64_t now_ns)
{
	struct card_pages *pages = &pages_of[card];

	if (now_ns - pages->looked_ns < LOOK_EVERY_NS)
		return pages;
	pages->looked_ns = now_ns;
	if (!pages->neighbours) {
		void *room = mmap(NULL, NEIGHBOURS * sizeof(*pages->neighbours),
				  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (room == MAP_FAILED)
			return pages;
		pages->neighbours = room;
	}
	if (!pages->scanned_ns || now_ns - pages->scanned_ns >= SCAN_EVERY_NS) {
		close_pages(pages);
		activity_each_neighbour(card, add_page, pages);
		pages->scanned_ns = now_ns;
	}
	for (unsigned i = 0; i < pages->count; i++) {
		struct neighbour *neighbour = &pages->neighbours[i];

		if (pread(neighbour->fd, &neighbour->page, ACTIVITY_BYTES, 0) != ACTIVITY_BYTES ||
		    atomic_load(&neighbour->page.magic) != ACTIVITY_MAGIC)
			memset(&neighbour->page, 0, sizeof(neighbour->page));
	}
	return pages;
}

static uint32_t at_most(uint32_t parts, unsigned processes)
{
	const uint64_t most = (uint64_t)processes * ACTIVITY_ONE;

	return parts < most ? parts : (uint32_t)most;
}

/* Other claims of the card in our own container: processes, and our own further contexts. */
static unsigned other_processes(void)
{
	const struct region *region = slice_region();
	unsigned count = events_count();

	for (unsigned i = 0; i < region->slots_seen && i < REGION_SLOTS; i++)
		count += region->slots[i].state == SLOT_USED && (int)i != slice_slot();
	return count - (count > 0);
}

/* Processes on the card in a span of time, and how much of it each claims, in parts of
 * ACTIVITY_ONE.
 */
struct claims {
	uint64_t weight, weighed[NEIGHBOURS + 1]; /* while they are being added up, by page */
	unsigned count;
	uint32_t sum;
	uint32_t each[(NEIGHBOURS + 1) * (unsigned)CLAIMED_MOST];
};

/* Others in one bucket, which counts by `weight`: our container's other processes, the slices
 * beside us. */
static void weigh_bucket(struct claims *claims, const struct meter *meter,
			 const struct activity_bucket *bucket, uint64_t weight, uint64_t now_ns)
{
	const struct card_pages *pages = &pages_of[meter->card];
	const uint32_t all =
		activity_in(activity_own_page(meter->card), bucket, now_ns, meter->place);
	const uint32_t own = activity_in(&meter->mine, bucket, now_ns, -1);

	claims->weight += weight;
	claims->weighed[0] += weight * at_most(all > own ? all - own : 0, other_processes());
	for (unsigned i = 0; i < pages->count; i++)
		claims->weighed[1 + i] += weight * at_most(activity_in(&pages->neighbours[i].page,
								       bucket, now_ns, -1),
							   CLAIMED_MOST);
}

/* A page is one process or several alike. */
static void count_claims(struct claims *claims)
{
	for (unsigned page = 0; claims->weight && page < NEIGHBOURS + 1; page++) {
		const uint32_t claimed = (uint32_t)(claims->weighed[page] / claims->weight);
		unsigned processes = (claimed + ACTIVITY_ONE - 1) / ACTIVITY_ONE;

		if (processes > CLAIMED_MOST)
			processes = CLAIMED_MOST;
		for (unsigned i = 0; i < processes; i++)
			claims->each[claims->count++] = claimed / processes;
		claims->sum += claimed;
	}
}

static struct claims claims_in(const struct meter *meter, uint64_t from_ns, uint64_t to_ns,
			       uint64_t now_ns)
{
	struct claims claims = {0};

	while (from_ns < to_ns) {
		const struct activity_bucket bucket = activity_bucket_at(from_ns, now_ns);
		const uint64_t upto_ns = to_ns < bucket.to_ns ? to_ns : bucket.to_ns;

		weigh_bucket(&claims, meter, &bucket, upto_ns - from_ns, now_ns);
		from_ns = upto_ns;
	}
	count_claims(&claims);
	return claims;
}

/*
 * Our part of a span in which we were all the time. The card goes round: who claims
 * less than an even part has that, and the others share the rest evenly.
 */
static uint32_t part_of(const struct claims *claims)
{
	uint32_t level = 0, next = ACTIVITY_ONE / (claims->count + 1);

	while (next > level) {
		uint32_t claimed = 0;
		unsigned sharing = 1;

		level = next;
		for (unsigned i = 0; i < claims->count; i++) {
			claimed += claims->each[i] <= level ? claims->each[i] : 0;
			sharing += claims->each[i] > level;
		}
		next = (ACTIVITY_ONE - claimed) / sharing;
	}
	return level;
}

/* What is older than the pages go was as what they still know. */
static uint64_t known_from(uint64_t from_ns, uint64_t to_ns, uint64_t now_ns)
{
	const uint64_t oldest_ns = now_ns > ACTIVITY_HISTORY_NS ? now_ns - ACTIVITY_HISTORY_NS : 0;

	return from_ns < oldest_ns && to_ns > oldest_ns ? oldest_ns : from_ns;
}

uint64_t neighbours_our_part(const struct meter *meter, uint64_t from_ns, uint64_t to_ns)
{
	const uint64_t now_ns = timer_now_ns(), whole_ns = to_ns - from_ns;
	uint64_t part_ns = 0;

	look(meter->card, now_ns);
	from_ns = known_from(from_ns, to_ns, now_ns);
	const uint64_t known_ns = to_ns - from_ns;

	while (from_ns < to_ns) {
		const uint64_t upto_ns =
			to_ns - from_ns < ACTIVITY_LONG_NS ? to_ns : from_ns + ACTIVITY_LONG_NS;
		const struct claims claims = claims_in(meter, from_ns, upto_ns, now_ns);

		part_ns += (upto_ns - from_ns) * part_of(&claims) / ACTIVITY_ONE;
		from_ns = upto_ns;
	}
	return known_ns == whole_ns
		       ? part_ns
		       : (uint64_t)((double)part_ns / (double)known_ns * (double)whole_ns);
}

struct neighbours_share neighbours_share_again(const struct meter *meter,
					       const struct activity *there, uint64_t from_ns,
					       uint64_t to_ns, uint64_t now_ns)
{
	struct claims claims = {0};

	look(meter->card, now_ns);
	for (; from_ns < to_ns; from_ns += ACTIVITY_SHORT_NS) {
		const struct activity_bucket bucket = activity_bucket_at(from_ns, now_ns);
		const uint64_t there_ns = activity_finished_ns(there, &bucket);

		if (there_ns)
			weigh_bucket(&claims, meter, &bucket, there_ns, now_ns);
	}
	count_claims(&claims);
	const uint64_t left = claims.sum < ACTIVITY_ONE ? (uint64_t)ACTIVITY_ONE - claims.sum : 0;

	return (struct neighbours_share){
		.part_ns = claims.weight * part_of(&claims) / ACTIVITY_ONE,
		.left_ns = claims.weight * left / ACTIVITY_ONE,
	};
}

uint64_t neighbours_duration(const struct meter *meter, uint64_t from_ns, uint64_t part_ns)
{
	const uint64_t now_ns = timer_now_ns();

	look(meter->card, now_ns);
	const struct activity_bucket bucket = activity_bucket_at(from_ns, now_ns);

	return part_ns +
	       part_ns * claims_in(meter, bucket.from_ns, bucket.to_ns, now_ns).sum / ACTIVITY_ONE;
}

uint32_t neighbours_parts(const struct meter *meter)
{
	const uint64_t now_ns = timer_now_ns();

	look(meter->card, now_ns);
	return claims_in(meter, now_ns - LATELY_NS, now_ns, now_ns).sum;
}

uint64_t neighbours_quiet_until_ns(int card, uint64_t now_ns)
{
	const struct card_pages *pages = look(card, now_ns);
	uint64_t until_ns = 0;

	for (unsigned i = 0; i < pages->count; i++) {
		const uint64_t asked_ns = atomic_load(&pages->neighbours[i].page.quiet_until_ns);

		until_ns = asked_ns > until_ns ? asked_ns : until_ns;
	}
	return until_ns;
}

static bool is_out(const struct activity *page, uint64_t now_ns, int skip)
{
	for (int i = 0; i < ACTIVITY_OPEN; i++)
		if (i != skip && atomic_load(&page->open[i].since_ns) &&
		    atomic_load(&page->open[i].until_ns) > now_ns)
			return true;
	return false;
}

/* Until when it says, for all that is out; or would at the most. */
static uint64_t out_until_ns(const struct activity *page, bool at_most)
{
	uint64_t last_ns = 0;

	for (int i = 0; i < ACTIVITY_OPEN; i++) {
		const uint64_t since_ns = atomic_load(&page->open[i].since_ns);
		const uint64_t until_ns = atomic_load(&page->open[i].until_ns);
		const uint64_t there_ns = until_ns > since_ns ? until_ns - since_ns : 0;
		const uint64_t more_ns = at_most ? there_ns * OUT_TIMES_MORE + OUT_MORE_NS : 0;

		if (since_ns && since_ns + there_ns + more_ns > last_ns)
			last_ns = since_ns + there_ns + more_ns;
	}
	return last_ns;
}

uint64_t neighbours_out_until_ns(int card, uint64_t now_ns, bool at_most)
{
	const struct card_pages *pages = look(card, now_ns);
	uint64_t last_ns = 0;

	for (unsigned i = 0; i < pages->count; i++) {
		const uint64_t until_ns = out_until_ns(&pages->neighbours[i].page, at_most);

		last_ns = until_ns > last_ns ? until_ns : last_ns;
	}
	return last_ns;
}

static bool is_at_work(const struct activity *page, uint64_t since_ns, uint64_t now_ns)
{
	return (atomic_load(&page->newest_short) + 1) * ACTIVITY_SHORT_NS > since_ns ||
	       is_out(page, now_ns, -1);
}

/* Our container's other processes are not asked. */
bool neighbours_yield(const struct meter *meter, uint64_t lately_ns)
{
	const uint64_t now_ns = timer_now_ns();
	const struct card_pages *pages = look(meter->card, now_ns);

	for (unsigned i = 0; i < pages->count; i++) {
		const struct activity *page = &pages->neighbours[i].page;

		if (!atomic_load(&page->yields) && is_at_work(page, now_ns - lately_ns, now_ns))
			return false;
	}
	return !is_out(activity_own_page(meter->card), now_ns, meter->place);
}

bool neighbours_are_at_work(int card, uint64_t lately_ns)
{
	const uint64_t now_ns = timer_now_ns();
	const struct card_pages *pages = look(card, now_ns);

	for (unsigned i = 0; i < pages->count; i++)
		if (is_at_work(&pages->neighbours[i].page, now_ns - lately_ns, now_ns))
			return true;
	return false;
}

bool neighbours_were_away(const struct meter *meter, uint64_t from_ns, uint64_t to_ns)
{
	const uint64_t now_ns = timer_now_ns();

	if (pages_of[meter->card].looked_ns < to_ns)
		pages_of[meter->card].looked_ns = 0;
	look(meter->card, now_ns);
	from_ns = known_from(from_ns, to_ns, now_ns);
	/* What they have out may take longer than they think. */
	return neighbours_out_until_ns(meter->card, now_ns, true) <= from_ns &&
	       claims_in(meter, from_ns, to_ns, now_ns).sum < AWAY;
}
