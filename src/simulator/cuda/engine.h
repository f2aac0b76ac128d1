/*
 * The virtual GPU of one card, in memory that all processes share.
 *
 * A card has streams; a stream is a ring of items in order. Time is virtual
 * (clock.h). Nothing runs in the background: a thread that looks at the engine moves
 * it from the time it was last looked at to now, item by item.
 *
 * Processes take turns on the card, round robin, as NVIDIA's resource manager
 * lets them: a turn lasts a time slice, or until its process has no kernel next.
 * A kernel that is longer goes on in its process's next turn. Within a turn each
 * stream of the process that has a kernel next gets an equal part. Copies, and
 * events right behind them, need no turn; those in one direction of the bus share it,
 * whichever process they are of. A kernel is thought to fill the card: two kernels of one process
 * take as long together as one after the other. What costs time beside that is in `struct
 * engine_costs`: nothing, unless it is set.
 *
 * A tenant is a process on the card; its number is its slot in the node's
 * process table (state.h), so that who reaps there knows whom to bury here.
 */
#ifndef GPUSIM_ENGINE_H
#define GPUSIM_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	ENGINE_LAYOUT = 6,
	ENGINE_TENANTS = 1024, /* GPUSIM_PROCESSES */
	ENGINE_STREAMS = 1024, /* with work or open, on one card */
	ENGINE_ITEMS = 64,     /* queued in one stream, then the caller waits */
	ENGINE_MARKERS = 128,  /* finish times a stream remembers; > ENGINE_ITEMS */
	ENGINE_PARTITIONS = 8,
	ENGINE_MERGED = 16,   /* launches in a row that become one item */
	ENGINE_WINDOWS = 16,  /* utilisation samples kept */
	ENGINE_FRACTION = 10, /* amounts are counted in 2^-10 ns */
	ENGINE_ALONE = 1024,
};

/* The driver samples utilisation every sixth of a second. */
#define ENGINE_WINDOW_NS (1000000000ULL / 6)

/* As measured on an H100 with driver 580.159. */
#define ENGINE_TIMESLICE_NS 2090000ULL

enum engine_bus { ENGINE_ON_CARD, ENGINE_TO_CARD, ENGINE_TO_HOST, ENGINE_BUSES };

enum engine_kind {
	ENGINE_KERNEL = 1, /* amount: time on an otherwise idle card */
	ENGINE_COPY,       /* amount: time by itself; other: an engine_bus */
	/* number: remembers when the stream came here; amount: what that takes; other: 1 behind a
	   copy */
	ENGINE_MARKER,
	ENGINE_WAIT, /* until marker `number` of stream `other` */
	ENGINE_HOST, /* until the owner has run its function: engine_pop_host */
};

struct engine_item {
	uint16_t kind;
	uint16_t is_programmatic; /* a kernel that may begin before the one in front of it ends */
	uint32_t launches;
	uint64_t amount; /* ns when pushed, 2^-10 ns in the ring */
	uint64_t number;
	uint64_t there_ns; /* the card has it from then on */
	uint32_t other;
	uint32_t generation; /* of the other stream, which may have ended since */
};

struct engine_stream {
	uint32_t generation; /* grows at each opening */
	uint32_t tenant;
	uint32_t is_open;
	uint32_t is_closing; /* destroyed, its work goes on */
	uint32_t head;       /* items [head, tail), modulo ENGINE_ITEMS */
	uint32_t tail;
	uint64_t marked;     /* number of the last marker queued */
	uint64_t reached;    /* number of the last marker reached */
	uint32_t is_copying; /* the last kernel or copy that was queued is a copy */
	uint32_t reserved;
	uint64_t marker_ns[ENGINE_MARKERS];
	struct engine_item items[ENGINE_ITEMS];
};

struct engine_tenant {
	uint32_t is_open;
	int32_t pid; /* with start_ticks: is the slot still this process's? */
	uint64_t start_ticks;
	uint64_t served;    /* time on the card in all, 2^-10 ns */
	uint32_t partition; /* MIG slices share nothing: 0 the card, 1.. its slices */
	uint32_t runnable;  /* streams on the card in this step */
};

/* Of a partition: who is on the card. */
struct engine_turn {
	uint32_t holder;  /* the tenant that has the turn, or had it last */
	uint32_t tenants; /* with a kernel next, at the last look */
	uint64_t left;    /* of the turn, 2^-10 ns */
	uint64_t away;    /* until the holder is on the card, 2^-10 ns */
};

/* What a card takes beside the work itself; 0: nothing. */
struct engine_costs {
	uint64_t event_ns;             /* of a stream's time, for an event */
	uint64_t event_behind_ns;      /* and more right behind a queued kernel */
	uint64_t submit_ns;            /* from the host's call until the card has it */
	uint64_t change_ns;            /* until another process is on the card */
	uint64_t jitter_permille;      /* by how much a kernel's time differs, to both sides */
	uint64_t clock_permille;       /* by how much longer it is on a card that is busy */
	uint64_t overlap_percent;      /* what several streams get done more than one */
	uint64_t programmatic_percent; /* of a kernel's time before the end of the one in front */
};

struct engine_window {
	uint64_t index; /* start of the window / ENGINE_WINDOW_NS */
	uint64_t busy_ns;
};

struct engine {
	uint32_t layout; /* 0: not laid out; set last */
	uint32_t active_count;
	pthread_mutex_t lock;           /* shared and robust */
	uint32_t streams_ever;          /* all beyond were never open: nobody need look there */
	uint32_t copying[ENGINE_BUSES]; /* streams with a copy next, at the last look */
	uint64_t now_ns;                /* all items are as they are at this time */
	uint64_t busy_ns;               /* time with a kernel on the card, in all */
	uint64_t timeslice_ns;          /* of a turn */
	struct engine_costs costs;
	uint64_t seed; /* of the next jitter */
	struct engine_turn turns[ENGINE_PARTITIONS];
	struct engine_window windows[ENGINE_WINDOWS];
	struct engine_tenant tenants[ENGINE_TENANTS];
	uint32_t active[ENGINE_STREAMS]; /* streams that hold items */
	struct engine_stream streams[ENGINE_STREAMS];
};

/* Where a stream stands, for a caller that wants to wait. */
struct engine_view {
	uint64_t reached;
	uint64_t left_ns; /* at least so long until the stream is empty */
	uint32_t queued;
	bool host_is_next;
};

/* All functions may be called from any thread and process at once. */

/* Zeroed memory becomes an idle engine; harmless on one that is. Call it under the node's lock. */
void engine_lay_out(struct engine *engine);
void engine_set_timeslice(struct engine *engine, uint64_t timeslice_ns);
void engine_get_costs(struct engine *engine, struct engine_costs *costs);
void engine_set_costs(struct engine *engine, const struct engine_costs *costs);

void engine_open_tenant(struct engine *engine, uint32_t tenant, int32_t pid, uint64_t start_ticks,
			uint32_t partition);
void engine_close_tenant(struct engine *engine, uint32_t tenant);

/* -1 when all streams of the card are in use. */
int engine_open_stream(struct engine *engine, uint32_t tenant);
/* What is queued goes on. */
void engine_close_stream(struct engine *engine, int stream);

/*
 * engine_push: false when the stream's ring is full; the caller waits and
 * asks again. For a marker, *number tells which one it became.
 */
bool engine_push(struct engine *engine, int stream, struct engine_item item, uint64_t now_ns,
		 uint64_t *number);
/* Takes the host function at the head of a stream, if there is one there now and it is due. */
bool engine_pop_host(struct engine *engine, int stream, uint64_t now_ns,
		     bool (*is_due)(uint64_t cookie), uint64_t *cookie);

struct engine_view engine_look(struct engine *engine, int stream, uint64_t now_ns);

/* When a marker that was reached was reached; only the last ENGINE_MARKERS are known. */
uint64_t engine_marker_ns(const struct engine *engine, int stream, uint64_t number);

/* Percent of the last whole window in which a kernel was on the card. */
unsigned engine_busy_percent(struct engine *engine, uint64_t now_ns);

/* Time on the card that a tenant had in all. */
uint64_t engine_served_ns(struct engine *engine, uint32_t tenant);

/* engine_step.c, under the engine's lock. */
void engine_lock(struct engine *engine);
void engine_unlock(struct engine *engine);
void engine_advance(struct engine *engine, uint64_t now_ns);
/* Percent of the last whole window in which something was on the card. */
unsigned engine_last_percent(const struct engine *engine, uint64_t now_ns);
/* engine_turns.c, under the engine's lock; times in 2^-10 ns. */
/* What a stream does next; NULL: nothing. */
struct engine_item *engine_head(struct engine_stream *stream);
/* Turns that are over go on to the next tenant. True when any has a kernel next. */
bool engine_take_turns(struct engine *engine);
/*
 * By how much slower than alone the kernel or event at the head of a stream moves, in parts of
 * ENGINE_ALONE; 0: not at all.
 */
uint64_t engine_divisor(const struct engine *engine, const struct engine_stream *stream);
/* The same of a copy. */
uint64_t engine_copy_divisor(const struct engine *engine, const struct engine_item *copy);
/* Nanoseconds until the card has it. */
uint64_t engine_until_there(const struct engine *engine, const struct engine_item *item);
/* Time until the first turn ends, at most `limit`. */
uint64_t engine_turns_end(const struct engine *engine, uint64_t limit);
void engine_spend_turns(struct engine *engine, uint64_t step);
/* At least so long until the tenant is on the card, if it has a kernel next. */
uint64_t engine_until_turn(struct engine *engine, uint32_t tenant);

#endif
