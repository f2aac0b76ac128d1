/* How long launches of a kind took so far; see compute/estimate.c. With the meter's lock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ESTIMATE_UNKNOWN_NS (1ull << 40)

struct estimate {
	uint64_t work_ns;  /* card time of one launch */
	uint64_t solo_ns;  /* the same without neighbours; ESTIMATE_UNKNOWN_NS: not known */
	uint64_t worst_ns; /* what it may take for all we know */
	bool is_known;     /* measured before */
	bool has_waited;   /* of late some took longer than that: it is no neighbours' time */
	bool was_quiet;    /* the last time that it should be measured without neighbours, it was */
	bool is_sampled;   /* of late some were measured by themselves, and took no longer */
};

struct estimate estimate_of(uint64_t what);
/* So many launches took so long, each. */
void estimate_learn(uint64_t what, uint64_t measured_ns, uint32_t launches);
/* From the begin of one to its end this passed, neighbours' turns included, unless they were asked
 * to be quiet, and were. */
void estimate_learn_solo(uint64_t what, uint64_t passed_ns, bool is_asked, uint64_t now_ns);

/*
 * One is launched: should it be measured by itself, on an idle card? Between launches that
 * come more slowly than kernels end the card is idle, and only so it is told from work.
 */
bool estimate_wants_sample(uint64_t what);
/* It took so long by itself; 0: the card was not idle. */
void estimate_sample(uint64_t what, uint64_t took_ns);

/* One is launched: should it be measured without neighbours? */
bool estimate_wants_quiet(uint64_t what, uint64_t now_ns);
/* Were they quiet? Asked again only after a while. */
void estimate_note_quiet(uint64_t what, bool is_quiet, uint64_t now_ns);
void estimate_forget_all(void);
