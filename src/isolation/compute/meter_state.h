/* What the files of this folder share: the meter of a context, and a launch on its way. */
#pragma once

#include "compute/estimate.h"
#include "driver/context_scope.h"

#include <stdbool.h>
#include <stdint.h>

/* More contexts than the memory of any card has room for: none goes unmetered. */
enum { METER_EVENTS = 128, METERS = 512 };

static inline uint64_t smaller(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static inline uint64_t larger(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

/* Launches in a row, up to an event. */
struct work {
	uint64_t what;      /* of the last */
	uint64_t mean_ns;   /* their means together */
	uint64_t copies_ns; /* of it, copies between host and card */
	uint64_t gaps_ns;   /* between them, if they were queued */
	uint64_t worst_ns;  /* what they may take */
	uint64_t begun_ns;  /* the first was launched, */
	uint64_t ended_ns;  /* and the last */
	uint64_t idle_ns;   /* the card was known to have nothing of ours, since the event before */
	uint64_t pause_ns;  /* and likely had nothing for so long beside that */
	uint64_t ahead_ns;  /* in front of each of its launches was as much, or more */
	uint64_t waited_ns; /* the first of its launches for the card */
	uint64_t lag_ns;    /* of a sample: the card waited for the launch */
	uint32_t launches;
	bool is_alike;  /* one kind */
	bool is_sure;   /* all of them are known */
	bool is_sample; /* one launch, with an event right before it */
	bool is_blank;  /* nothing between two events */
	bool is_from_idle;
	uint64_t front; /* of a sample: number of the event before it */
};

struct timed_event {
	CUevent event;
	CUstream stream;
	struct work work; /* since the event before */
	uint64_t number;  /* of the context's, from 1 */
	uint64_t set_ns;
};

struct meter {
	CUcontext context; /* NULL: free */
	int card;
	CUevent reference;     /* the last one that was reached; NULL: none */
	uint64_t reference_ns; /* when it was seen to be, by our clock */
	uint64_t reference_number, events_ever;
	uint64_t idle_since_ns; /* all had ended, likely; 0: something is out */
	uint64_t launched_ns, recorded_ns, polled_ns;
	uint64_t first_ns;  /* since when the first event is the first */
	uint64_t mixed_ns;  /* launches went from one stream to another */
	uint64_t kernel_ns; /* the last one was asked for */
	uint64_t let_go_ns;
	uint64_t number;    /* of launches */
	uint64_t out_ns;    /* the means of all that is out */
	uint64_t copies_ns; /* of it, copies */
	uint64_t more_ns; /* since the card was idle: one launch may take so much more than its mean
			   */
	uint64_t worst_ns; /* and what that may take */
	uint64_t aside_ns; /* of it, what waits for the program while other streams go on */
	uint64_t slack_ns; /* launches were charged so much less than is known of them */
	uint64_t doubt_ns; /* not charged because what is known did not explain it */
	uint32_t wary;     /* so many launches are sampled all */
	bool is_polled;    /* by some thread, just now */
	bool is_mixed;     /* several streams since the card was idle, */
	bool is_learning;  /* and copies that were not measured before */
	CUstream stream;   /* of the last launch; it may be gone */
	struct work tail;  /* behind the last event */
	uint32_t count, spare_count;
	struct timed_event events[METER_EVENTS];
	CUevent spares[METER_EVENTS + 2];
};

/* One launch between its two halves, in the thread that makes it. */
struct meter_launch {
	int card;
	bool is_metered;
	bool is_sample;
	bool is_copy;
	uint64_t what; /* function and size, or graph, or estimate_copy_kind() */
	struct estimate estimate;
	uint64_t now_ns;     /* when it was let go */
	uint64_t blocked_ns; /* since when neighbours keep it from the card; 0: they do not */
	uint64_t waited_ns;  /* for credit and the card */
	uint64_t lag_ns;     /* of a sample: the card waited for the launch */
	CUevent front;       /* and the event before it */
	uint64_t front_number;
	CUstream stream;
	struct context_scope there; /* the stream's context */
};

/* A wait for work, between its two halves. */
struct meter_wait {
	CUcontext context;
	CUstream stream;
	bool is_for_all;   /* of the context */
	uint64_t number;   /* of launches when it began, */
	uint64_t asked_ns; /* and then it was so late */
};
