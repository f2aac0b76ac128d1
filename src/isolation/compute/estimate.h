/* How long launches of a kind take; see compute/estimate.c. With the meter's lock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ESTIMATE_UNKNOWN_NS (1ull << 40)

struct estimate {
	uint64_t work_ns;    /* card time of one launch, as of late */
	uint64_t solo_ns;    /* its mean without neighbours; ESTIMATE_UNKNOWN_NS: not known */
	uint64_t least_ns;   /* that passed beside neighbours; ESTIMATE_UNKNOWN_NS: not known */
	uint64_t sampled_ns; /* one by itself, on an idle card; ESTIMATE_UNKNOWN_NS: not known */
	uint64_t worst_ns;   /* what it may take for all we know */
	uint64_t longest_ns; /* that one took of late */
	bool is_sure;        /* that was seen, and not only the least beside neighbours */
	bool is_known;       /* measured before */
	bool varies;         /* some of late took longer than others */
};

struct estimate estimate_of(uint64_t what);

/* A launch of this took so long, beside neighbours perhaps. */
void estimate_learn(uint64_t what, uint64_t measured_ns, uint32_t launches);
/*
 * These launches took so long together, and nobody else was on the card. `is_fair`: however
 * long they took. `is_single`: one launch, and nothing but that.
 */
void estimate_learn_solo(const uint64_t *whats, uint32_t launches, uint64_t took_ns, bool is_fair,
			 bool is_single, uint64_t now_ns);
/* So long passed beside neighbours, their turns included. */
void estimate_note_passed(uint64_t what, uint64_t passed_ns);

/*
 * One is launched: should it be measured by itself, on an idle card? Between launches that
 * come more slowly than kernels end the card is idle, and only so it is told from work.
 */
bool estimate_wants_sample(uint64_t what);
/* What was measured was far longer than the samples: sample soon. */
void estimate_doubt_sample(uint64_t what);
/* It took so long by itself; 0: the card was not idle. */
void estimate_sample(uint64_t what, uint64_t took_ns);

/* One is launched: should it be measured without neighbours? */
bool estimate_wants_quiet(uint64_t what, uint64_t now_ns);
void estimate_forget_all(void);
