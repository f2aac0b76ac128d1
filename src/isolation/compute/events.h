/*
 * The events by which work is measured: one meter a context, a queue of events
 * each. Everything here with the lock of compute/await.h.
 */
#pragma once

#include "books/activity.h"
#include "driver/driver.h"

#include <stdbool.h>
#include <stdint.h>

/* More contexts than the memory of any card has room for: none goes unmetered. */
enum { METER_EVENTS = 128, METERS = 512, METER_STREAMS = 8, METER_KINDS = 16 };

/* Launches in a row. */
struct work {
	uint64_t what;               /* of the last */
	uint64_t whats[METER_KINDS]; /* of the first so many */
	uint64_t work_ns;            /* their estimates together */
	uint64_t solo_ns;            /* their means without neighbours, together */
	uint64_t sampled_ns;         /* what they took by themselves, together */
	uint32_t launches;
	bool is_alike; /* one function or graph only */
	bool varies;   /* some of their kinds take now this, now that */
};

struct timed_event {
	CUevent event;
	struct work work;  /* since the event before; no launches: a gap, which is no work */
	uint64_t known_ns; /* estimates of all but one stranger; 0: no stranger among others */
	uint64_t worst_ns; /* what is certain when it is reached; see compute/backlog.c */
};

/* Launches of a stream, or a few, behind its last event. */
struct untimed {
	uint64_t worst_ns;
	uint64_t launched_ns; /* the last */
};

struct meter {
	CUcontext context; /* NULL: free */
	int card;
	int place; /* among the open ones of the activity page */
	bool is_running;
	/* the others are asked to begin nothing, until then at most; see compute/quiet.c */
	bool is_quiet, quiet_is_long;
	uint64_t quiet_from_ns, quiet_until_ns; /* they did not, the last time */
	uint64_t quiet_since_ns, quiet_last_ns, quiet_next_ns;
	uint64_t owed_ns; /* claimed beyond the time in which our work was there */
	/* the reference: an event that was reached, and when that was on our clock */
	CUevent reference;
	bool has_reference;
	uint64_t reference_ns;
	uint64_t lead_ns;       /* from there to when the first launch was out */
	bool has_lead;          /* it was the first on an idle card, and that is known */
	uint64_t cursor_ns;     /* charged up to here */
	uint64_t unfinished_ns; /* the first event was not reached yet then */
	uint64_t recorded_ns, polled_ns, launched_ns;
	uint64_t progress_ns; /* since when the first event is the first */
	uint64_t begun_ns;    /* working, after a long pause */
	uint64_t let_go_ns;   /* the last launch that went although the backlog was full */
	uint64_t worst_ns,
		untimed_ns; /* see compute/backlog.c: of all that was launched, and behind events */
	struct untimed untimed[METER_STREAMS];
	uint32_t wary;   /* so many launches get an event each: gaps, or far too long a launch */
	uint32_t groups; /* of launches behind one event each */
	bool has_unmeasured;         /* since the last event something was charged as estimated */
	uint64_t queued_ns;          /* estimates of all events */
	uint64_t told_until_ns;      /* neighbours believe us at work until then; 0: idle */
	uint64_t counted_ns, others; /* how many others there were, and when that was */
	struct work tail;            /* behind the last event */
	uint32_t first, count;
	struct timed_event events[METER_EVENTS];
	uint32_t spare_count;
	CUevent spares[METER_EVENTS + 2];
	struct activity mine; /* what of the page is this meter's */
	/* measured work from its beginning to its end, and what was charged for that */
	struct activity there, paid;
	/* the same where it is known what its kernels take */
	struct activity sure_there, sure_paid;
	CUstream stream;       /* of the last launch; it may be gone */
	uint64_t mixed_ns;     /* when launches last went from one stream to another */
	uint64_t corrected_ns; /* and was looked at again up to here */
	int64_t left_ns;       /* left over by neighbours, less what was paid */
};

/* The meter of a context, made if it has none; the last one is shared when all are taken. */
struct meter *events_meter(CUcontext context, int card);
/* NULL when it has none. */
struct meter *events_meter_of(CUcontext context);
/* Meters are looked for among the first so many. */
unsigned events_count(void);
struct meter *events_meter_at(unsigned index);

/* A busy period begins; with `is_measured` an event on the stream says when. */
void events_begin(struct meter *meter, CUstream stream, bool is_measured, uint64_t now_ns);
/* Puts the tail behind an event; false when none could be set. */
bool events_set(struct meter *meter, CUstream stream, uint64_t known_ns, uint64_t now_ns);
/* NULL when there is none. */
const struct timed_event *events_first(const struct meter *meter);
bool events_is_reached(const struct meter *meter);
/* From the reference to the first event; false when it cannot be told. */
bool events_took(const struct meter *meter, uint64_t *took_ns);
/* The first event becomes the reference. */
void events_pass(struct meter *meter, uint64_t reached_ns);
/* A later one, of another stream, was reached before the first: it goes, and its work is told. */
bool events_overtake(struct meter *meter, struct timed_event *gone);
/* A launch of this takes `each_ns` now: changes what is queued, and says by how much. */
int64_t events_reprice(struct meter *meter, uint64_t what, uint64_t each_ns);

/* The context ends, its events with it. */
void events_forget(struct meter *meter);
void events_forget_all(void);
