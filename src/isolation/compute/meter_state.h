/* What the files of this folder share: the meter of a context, and a launch on its way. */
#pragma once

#include "books/activity.h"
#include "compute/estimate.h"
#include "driver/context_scope.h"

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
	uint64_t progress_ns; /* an event was reached, */
	uint64_t first_ns;    /* and since when the first one is the first */
	uint64_t begun_ns;    /* working, after a long pause */
	uint64_t doubted_ns;  /* the samples of what was launched, the last time */
	uint64_t let_go_ns;   /* the last launch that went although the backlog was full */
	uint64_t late_ns;     /* the first event was late, the last time */
	uint64_t worst_ns,
		untimed_ns; /* see compute/backlog.c: of all that was launched, and behind events */
	uint64_t aside_ns; /* of worst_ns: behind what waits for the program, it seems, while others
			      go on */
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

/* The first event that was not reached yet; NULL: there is none. */
static inline const struct timed_event *meter_first(const struct meter *meter)
{
	return meter->count ? &meter->events[meter->first] : NULL;
}

/* Launches went to several streams of late. */
static inline bool meter_is_mixed(const struct meter *meter, uint64_t now_ns)
{
	return now_ns - meter->mixed_ns < 1000000000u;
}

/* One launch between its two halves, in the thread that makes it. */
struct meter_launch {
	int card;
	bool is_metered;
	bool is_held_back; /* it waited for credit */
	bool is_first;     /* behind a reference, on an idle card */
	uint64_t what;     /* function and size, or graph */
	struct estimate estimate;
	uint64_t now_ns;   /* when it was let go */
	uint64_t begun_ns; /* when the reference was out */
	CUstream stream;
	struct context_scope there; /* the stream's context */
};
