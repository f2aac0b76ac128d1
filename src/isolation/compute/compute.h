/* What the files of this folder share. All with the lock of the meter's card, except credit_*,
 * which any thread and process may call at once. */
#pragma once

#include "driver/context_scope.h"

#include <stdbool.h>
#include <stdint.h>

enum { METER_EVENTS = 128, METER_PLACES_BITS = 17, METER_PLACES = 1 << METER_PLACES_BITS };

/* What a call takes the driver that does not wait, or less. */
#define METER_CALL_NS 10000u

/* Since the last launch, beyond what was out: the card had likely nothing of ours. */
#define METER_GAP_NS 20000u

static inline uint64_t smaller(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static inline uint64_t larger(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

/* Of a table with so many bits of places: that of a kind of launch. */
static inline uint32_t place_of(uint64_t what, unsigned bits)
{
	return (uint32_t)(what * 0x9E3779B97F4A7C15ull >> (64 - bits));
}

/* Where it is among so many; behind the last: nowhere. */
static inline uint32_t find_stream(const CUstream *streams, uint32_t count, CUstream stream)
{
	uint32_t i = 0;

	while (i < count && streams[i] != stream)
		i++;
	return i;
}

/* Launches in a row, up to an event. */
struct work {
	uint64_t what;      /* of the last */
	uint64_t mean_ns;   /* their means together */
	uint64_t copies_ns; /* of it, copies between host and card */
	uint64_t worst_ns;  /* what they may take */
	uint64_t begun_ns;  /* the card had the first */
	uint64_t ended_ns;  /* and the last was launched */
	uint64_t ahead;     /* some may not be launched yet: compute/ahead.c; 0: all are */
	uint32_t launches;
	bool is_sure;   /* all of them are known */
	bool is_sample; /* one launch, with an event right before it */
	bool is_blank;  /* nothing between two events */
	bool is_anchor; /* set while nothing was out: the card got there at once */
};

struct timed_event {
	CUevent event;
	CUstream stream;
	struct work work; /* since the event before */
	uint64_t number;  /* of the context's, from 1 */
	uint64_t set_ns;  /* the driver had it */
};

/* A kind of launch. */
struct place {
	uint64_t what;
	double mean_ns;
	uint64_t worst_ns; /* the longest of late */
	uint64_t steady;   /* launches since one took far longer than the others */
	uint32_t samples;  /* that the mean is of */
	uint32_t all;      /* so many launches are sampled all */
	uint32_t every, due;
	uint32_t alike;        /* samples in a row */
	uint32_t heard;        /* samples in all */
	uint32_t doubts, open; /* in all, and since one was proved */
	uint64_t open_ns;
};

struct meter {
	struct meter *next;
	CUcontext context;
	int card;
	CUevent reference;     /* the last one that was reached; NULL: none */
	uint64_t reference_ns; /* when it was, by our clock */
	uint64_t reference_number, events_ever;
	uint64_t covered_ns; /* up to then the card's time is charged */
	uint64_t launched_ns, recorded_ns, anchored_ns, polled_ns, reaped_ns;
	uint64_t first_ns;  /* since when the first event is the first */
	uint64_t kernel_ns; /* the last one was asked for */
	uint64_t let_go_ns;
	uint64_t number;    /* of launches */
	uint64_t out_ns;    /* the means of all that is out */
	uint64_t copies_ns; /* of it, copies */
	uint64_t more_ns;   /* since the card was idle: one may take so much more than its mean */
	uint64_t worst_ns;  /* and what that may take */
	uint64_t aside_ns;  /* of it, what waits for the program while other streams go on */
	uint64_t whole_ns;  /* spans beside others were charged so much more than their part */
	uint64_t slack_ns;  /* launches were charged so much less than is known of them */
	bool is_polled;     /* by some thread, just now, */
	uint32_t users;     /* and so many launch: the meter does not end meanwhile */
	bool is_mixed;      /* several streams since the card was idle */
	CUstream stream;    /* of the last launch; it may be gone */
	const void *thread; /* that made it, */
	uint32_t in_a_row;  /* and so many before it: compute/ahead.c */
	struct work tail;   /* behind the last event */
	uint32_t count, spare_count;
	uint32_t setters; /* threads that set an event just now, each on another stream */
	struct timed_event events[METER_EVENTS];
	CUevent spares[METER_EVENTS + 2];
	CUstream set_on[METER_EVENTS];
	uint64_t event_ns; /* what an event takes; 0: not measured */
	struct place places[METER_PLACES];
};

/* --- How long launches of a kind take: compute/estimate.c --- */

struct estimate {
	uint64_t mean_ns;  /* card time of one launch */
	uint64_t worst_ns; /* what it may take for all we know */
	uint64_t more_ns;  /* the longest of late took so much more than the mean */
	bool is_known;     /* measured before */
};

/* One launch between its two halves, in the thread that makes it. */
struct meter_launch {
	struct meter *meter; /* NULL: it is not metered */
	bool is_sample;
	bool is_copy;
	bool is_fresh; /* first of a lease: the card may have to change to this process */
	uint64_t what; /* function and size, or graph, or estimate_copy_kind() */
	struct estimate estimate;
	uint64_t now_ns;     /* when it was let go */
	uint64_t blocked_ns; /* since when neighbours keep it from the card; 0: they do not */
	CUstream stream;
	bool is_first; /* behind an event: when the card had it counts */
};

/* A wait for work, between its two halves. */
struct meter_wait {
	CUcontext context;
	CUstream stream;
	bool is_for_all;   /* of the context */
	uint64_t number;   /* of launches when it began, */
	uint64_t asked_ns; /* and then it was so late */
};

struct estimate estimate_of(const struct meter *meter, uint64_t what);
/* One is launched: is it to be measured by itself, with an event on both sides? */
bool estimate_wants_sample(struct meter *meter, uint64_t what);
/* So many were launched besides: how many may be before one is to be measured? */
uint32_t estimate_unsampled(struct meter *meter, uint64_t what, uint32_t launches);
/*
 * One took so long by itself, or less where `is_at_most`. Returns what it is believed to have
 * taken, and those before it that were in doubt.
 */
uint64_t estimate_sample(struct meter *meter, uint64_t what, uint64_t took_ns, bool is_at_most);
/* So much longer than known seems one to have taken, if no thread was late: the next are measured.
 */
void estimate_doubt(struct meter *meter, uint64_t what, uint64_t longer_ns);

struct estimate estimate_of_copy(const struct meter *meter, uint64_t copy);
bool estimate_wants_copy_sample(struct meter *meter, uint64_t copy);
void estimate_copy_sample(struct meter *meter, uint64_t copy, uint64_t took_ns);

/* --- The container's card time, earned by the clock, spent by work: compute/credit.c --- */

/* Saved up while idle: the reaction time of the cap. */
#define CREDIT_IDLE_NS 20000000LL

/* Is there a cap on the card's time at all? */
bool credit_is_capped(int card);

/* Earn up to now. `is_busy`: the slice has work on the card, and not all of it to itself. */
void credit_earn(int card, bool is_busy, uint64_t now_ns);
/* `is_free`: nobody else wanted the card: no debt, and meanwhile nothing is saved (credit_earn). */
void credit_spend(int card, uint64_t busy_ns, bool is_free);

/*
 * Launched by this process and not yet spent; may be negative. Copies keep no neighbour from the
 * card: they are paid at once, and given back when measured.
 */
void credit_put_out(int card, int64_t kernels_ns, int64_t copies_ns);
/* What all processes have launched and not yet spent, without copies. */
int64_t credit_inflight(int card);
/* How many other processes have; those that died with work out too, until somebody looks. */
unsigned credit_others(int card);

int64_t credit_saved(int card);
/* Credit, less what is launched and not yet spent; with none left nothing may be launched. */
int64_t credit_balance(int card);

void credit_note_wait(int card, uint64_t waited_ns);

/* --- The slice's own processes, one after the other on the card: compute/turns.c --- */

/* This process was charged. */
void turns_spend(int card, uint64_t busy_ns);
/* It waits for the card, for so long at least; 0: it does not. */
void turns_want(int card, uint64_t until_ns);
/* Does another process wait? */
bool turns_are_wanted(int card, uint64_t now_ns);
/*
 * Must this process wait, because another that waits has had less of the card? `to_holder`: it asks
 * to go without a lease, so the holder counts as waiting; an answer of no is noted as its turn.
 */
bool turns_yields(int card, bool to_holder, uint64_t now_ns);

/* Has this process far less of the card than one that was let go? */
bool turns_is_owed(int card);

/* Who of the slice has its lease of the card, or had it last. */
struct turns_lease {
	uint64_t word, until_ns; /* 0: given up */
	bool is_own;
};

struct turns_lease turns_lease(int card);
/* False: since `word` was seen another process was faster. */
bool turns_take(int card, uint64_t word, uint64_t until_ns);

/* --- One meter a context, with the events that were set and not reached: compute/events.c --- */

/* CUDA_LAUNCH_BLOCKING: the driver waits for each kernel before its launch returns. */
bool events_launches_wait(void);

/* A lock a card, which is held over no call of the driver. */
void events_lock(int card);
void events_unlock(int card);

/* Another one for each tail of the card's meters, from 1. Any thread, without the lock. */
uint64_t events_number(int card);
/* The next launch is the first of a new tail. */
void events_end_tail(struct meter *meter);

/* The meter of a context, with its card's lock; NULL, and no lock, when it has none. */
struct meter *events_find(CUcontext context);
/* The same, made if there is none. */
struct meter *events_meter(CUcontext context, int card);
/* Of a card, with its lock. */
struct meter *events_first(int card);

/*
 * Puts the tail behind an event on the stream; where none can be set it stays the tail. The lock
 * is given up meanwhile. False: there is none.
 */
bool events_set(struct meter *meter, CUstream stream);
/*
 * Was event `index` reached, and how long after the reference? False: not yet. The lock is given
 * up meanwhile; only for who has `is_polled`. `is_timed`: the time could be told.
 */
bool events_look(struct meter *meter, uint32_t index, bool *is_timed, int64_t *later_ns);
/* Takes it out; it becomes the reference where it was reached after that, at `end_ns`. */
void events_pass(struct meter *meter, uint32_t index, uint64_t end_ns, uint64_t now_ns);

/* The context ends, its events with it. Gives the lock up for good. */
void events_forget(struct meter *meter);
void events_after_fork(void);

/* --- Who may launch: a slice takes a lease of the card, and is alone there: compute/lease.c --- */

/* Nanoseconds until it is worth asking again; 0: the launch may go now. */
uint64_t lease_wait_ns(struct meter *meter, struct meter_launch *launch);

/* Tells the neighbours until when the slice has work out. */
void lease_tell(const struct meter *meter, uint64_t now_ns);
/* The same of a slice that takes no leases: for some time, or until its work was waited for. */
void lease_tell_without(int card, uint64_t until_ns);

/* May the slice have all of the card now, as nobody else wants it? */
bool lease_is_free(int card, uint64_t now_ns);
/* How many slices that take no leases have work on the card, as of the last look. */
unsigned lease_beside(int card, uint64_t now_ns);

/* --- Launches that a thread may make without asking: compute/ahead.c --- */

/* May the calling thread launch this? Without the lock; it is in the books already. */
bool ahead_takes(uint64_t what, CUstream stream);
/* It asks for a launch. */
void ahead_note_launch(struct meter *meter);
/* It has launched: pays for so many more at most, which take so long. */
void ahead_pay(struct meter *meter, const struct meter_launch *launch, uint32_t most_launches,
	       uint64_t most_ns);
/* Takes those out of the books that the thread has not made. Without the lock. */
void ahead_give_back(void);
/* What the calling thread has paid for is not its own any more. */
void ahead_forget(void);

/* --- What work is charged when it has ended: compute/charge.c --- */

/* Nothing of the meter's is on the card. */
static inline bool charge_is_idle(const struct meter *meter)
{
	return !meter->count && !meter->setters && !meter->tail.launches;
}

/* When the card likely has nothing of the meter's any more. */
static inline uint64_t charge_over_ns(const struct meter *meter)
{
	return meter->launched_ns + meter->out_ns + meter->more_ns + METER_GAP_NS;
}

/* So it is, and no event will tell. */
static inline bool charge_is_over(const struct meter *meter, uint64_t now_ns)
{
	return !meter->count && !meter->setters && now_ns > charge_over_ns(meter);
}

/* What is out becomes so much more, by its means: of it copies, and what it may take. */
void charge_out(struct meter *meter, int64_t mean_ns, int64_t copies_ns, int64_t worst_ns);
/* Charges what has ended. Gives the lock up meanwhile. */
void charge_poll(struct meter *meter, uint64_t now_ns);
/*
 * The same where all of the meter's work has ended, and was waited for from `asked_ns` on: also
 * what has no event behind it.
 */
void charge_all(struct meter *meter, uint64_t asked_ns, uint64_t now_ns);
/* A launch is out behind an anchor: if the card did not get there it changes process first. */
void charge_anchor(struct meter *meter, uint64_t now_ns);
/* On several streams, where the card likely has nothing of ours: charges what has no event. */
void charge_rest(struct meter *meter, uint64_t now_ns);
/* The context ends: what is still out is charged by its means. */
void charge_forget(struct meter *meter, uint64_t now_ns);

/* Must a launch that may take so long wait until more of what is out was measured? */
bool charge_holds(struct meter *meter, uint64_t worst_ns, uint64_t now_ns);
