/* The clock of the compute cap, and the one of all else. */
#pragma once

#include <stdint.h>

/* CLOCK_MONOTONIC; in the test build the simulated driver's clock, if that is what runs. */
uint64_t timer_now_ns(void);
/* Sleeps the calling thread; signals do not cut it short. */
void timer_sleep_ns(uint64_t duration_ns);
/* The same for some ten microseconds, after which a sleeping thread would wake too late. */
void timer_spin_ns(uint64_t duration_ns);

/* CLOCK_MONOTONIC in every build, and a sleep by it that signals may cut short. */
uint64_t timer_real_now_ns(void);
void timer_real_nap(uint64_t duration_ns);
