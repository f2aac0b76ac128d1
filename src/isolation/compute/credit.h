/* The container's card time: earned by the clock, spent by work; see compute/credit.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All may be called from any thread and process at once. */

/* Is there a cap on the card's time at all? */
bool credit_is_capped(int card);

/* Earn up to now. `is_busy`: the slice has work on the card. */
void credit_earn(int card, bool is_busy, uint64_t now_ns);
/* Below 0: what was spent before was too much. */
void credit_spend(int card, int64_t busy_ns);
/* Work while nobody else wanted the card: it costs savings, but makes no debt. */
void credit_spend_alone(int card, uint64_t busy_ns);

/* Launched by this process and not yet spent; may be negative. */
void credit_add_inflight(int card, int64_t work_ns);
/* The same of copies, which keep no neighbour from the card: paid at once, given back when
 * measured. */
void credit_add_copies(int card, int64_t work_ns);
/* What all processes have launched and not yet spent, without copies. */
int64_t credit_inflight(int card);

/* Credit, less what is launched and not yet spent; with none left nothing may be launched. */
int64_t credit_balance(int card);
/* Nanoseconds until there is credit again, with such a balance, which is 0 or less. */
uint64_t credit_wait_ns(int card, int64_t balance_ns);

void credit_note_wait(int card, uint64_t waited_ns);
