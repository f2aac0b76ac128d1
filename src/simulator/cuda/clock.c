#include "clock.h"
#include "settings.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define DOZE_LEAST_NS 20000u
#define TIMER_SLACK_NS 50000ull
#define DOZE_MOST_NS 5000000u
/* Where time goes in steps. */
#define STEP_LEAST_NS 1000u

static struct clock_area *area_of(struct gpusim_node *node)
{
	return (struct clock_area *)(void *)node->engine_node;
}

static uint64_t real_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t virtual_at(const struct clock_rate *rate, uint64_t real_ns)
{
	uint64_t passed = real_ns > rate->real_ns ? real_ns - rate->real_ns : 0;

	return rate->virtual_ns + passed / 1000 * rate->speed_milli +
	       passed % 1000 * rate->speed_milli / 1000;
}

static uint64_t wanted_speed(struct gpusim_node *node)
{
	uint32_t speed = atomic_load(&node->clock_speed_milli);

	return speed ? speed : 1000;
}

static void take_speed_from_environment(struct gpusim_node *node)
{
	const char *text = setting("GPU_SIMULATOR_CLOCK_SPEED");
	char *end;
	double speed = text ? strtod(text, &end) : 0;

	if (text && *end == '\0' && speed >= 0.001 && speed <= 1000000)
		atomic_store(&node->clock_speed_milli, (uint32_t)(speed * 1000));
}

void clock_lay_out(struct gpusim_node *node)
{
	struct clock_area *area = area_of(node);

	take_speed_from_environment(node);
	steps_lay_out(&area->steps);
	/* CLOCK_MONOTONIC starts at 0 at each boot, so a rate of an older boot is in the future. */
	if (area->layout && area->rates[area->current].real_ns <= real_now_ns()) {
		clock_follow_speed(node);
		return;
	}
	area->current = 0;
	area->rates[0] = (struct clock_rate){
		.real_ns = real_now_ns(),
		.virtual_ns = area->layout ? area->rates[0].virtual_ns : real_now_ns(),
		.speed_milli = wanted_speed(node),
	};
	__atomic_store_n(&area->layout, 1, __ATOMIC_RELEASE);
}

void clock_follow_speed(struct gpusim_node *node)
{
	struct clock_area *area = area_of(node);
	const struct clock_rate *old = &area->rates[area->current];
	uint64_t now_ns = real_now_ns();

	if (!area->layout || old->speed_milli == wanted_speed(node))
		return;
	area->rates[!area->current] = (struct clock_rate){
		.real_ns = now_ns,
		.virtual_ns = virtual_at(old, now_ns),
		.speed_milli = wanted_speed(node),
	};
	__atomic_store_n(&area->current, !area->current, __ATOMIC_RELEASE);
}

uint64_t clock_now_ns(struct gpusim_node *node)
{
	struct clock_area *area = area_of(node);
	uint32_t current = __atomic_load_n(&area->current, __ATOMIC_ACQUIRE);

	if (steps_is_on(&area->steps))
		return steps_now_ns(&area->steps);
	if (area->rates[current].speed_milli != wanted_speed(node)) {
		gpusim_lock(node);
		clock_follow_speed(node);
		gpusim_unlock(node);
		current = __atomic_load_n(&area->current, __ATOMIC_ACQUIRE);
	}
	return virtual_at(&area->rates[current], real_now_ns());
}

uint64_t clock_speed_milli(struct gpusim_node *node)
{
	return area_of(node)->rates[area_of(node)->current].speed_milli;
}

static void sleep_real(uint64_t real_ns)
{
	struct timespec left = {.tv_sec = (time_t)(real_ns / 1000000000u),
				.tv_nsec = (long)(real_ns % 1000000000u)};

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
		;
}

/* A sleep ends up to 50 us late (the kernel's timer slack), so the end of a wait is not slept. */
static void spin_until(uint64_t real_ns)
{
	while (real_now_ns() < real_ns)
		;
}

/* As a wait in real time: not for ever, and a little late. */
static uint64_t doze_in_steps_ns(uint64_t virtual_ns)
{
	if (virtual_ns == 0)
		return DOZE_LEAST_NS;
	return (virtual_ns < DOZE_MOST_NS ? virtual_ns : DOZE_MOST_NS) + STEP_LEAST_NS;
}

/* Samples are as old as the steps say: a member looks at them after its own wait. */
static void show_step(struct gpusim_node *node)
{
	atomic_store(&node->stepped_ns, steps_now_ns(&area_of(node)->steps));
}

static void step(struct gpusim_node *node, uint64_t virtual_ns)
{
	steps_wait(&area_of(node)->steps, virtual_ns);
	show_step(node);
}

void clock_doze(struct gpusim_node *node, uint64_t virtual_ns)
{
	uint64_t real_ns = virtual_ns * 1000 / clock_speed_milli(node);

	if (steps_is_member())
		step(node, doze_in_steps_ns(virtual_ns));
	else if (virtual_ns == 0)
		sleep_real(DOZE_LEAST_NS);
	else if (real_ns < 2 * TIMER_SLACK_NS)
		spin_until(real_now_ns() + real_ns);
	else
		sleep_real(real_ns - TIMER_SLACK_NS < DOZE_MOST_NS ? real_ns - TIMER_SLACK_NS
								   : DOZE_MOST_NS);
}

void clock_pay(struct gpusim_node *node, enum gpusim_cost cost)
{
	const uint64_t cost_ns = node && steps_is_member() ? gpusim_cost(cost, NULL) : 0;

	if (cost_ns)
		step(node, cost_ns);
}

static struct gpusim_node *ready_node(void)
{
	struct gpusim_node *node = gpusim_attach(false);

	if (node && !__atomic_load_n(&area_of(node)->layout, __ATOMIC_ACQUIRE)) {
		gpusim_lock(node);
		clock_lay_out(node);
		gpusim_unlock(node);
	}
	return node;
}

uint64_t gpusim_now_ns(void)
{
	struct gpusim_node *node = ready_node();

	return node ? clock_now_ns(node) : real_now_ns();
}

void gpusim_sleep_ns(uint64_t virtual_ns)
{
	struct gpusim_node *node = ready_node();
	uint64_t speed = node ? clock_speed_milli(node) : 1000;

	if (node && steps_is_member()) {
		step(node, virtual_ns + steps_lateness_ns(TIMER_SLACK_NS));
		return;
	}
	sleep_real(virtual_ns / speed * 1000 + virtual_ns % speed * 1000 / speed);
}

void gpusim_spin_ns(uint64_t virtual_ns)
{
	struct gpusim_node *node = ready_node();

	if (node && steps_is_member())
		step(node, virtual_ns);
}

int gpusim_step_together(unsigned count)
{
	struct gpusim_node *node = ready_node();

	if (!node || !steps_join(&area_of(node)->steps, count, clock_now_ns(node)))
		return -1;
	show_step(node);
	return 0;
}

/* Nobody took samples at the hours of another clock. With the node's lock. */
static void forget_samples(struct gpusim_node *node)
{
	for (unsigned i = 0; i < GPUSIM_CARDS; i++)
		node->cards[i].engine_seen_ns = 0;
	for (unsigned i = 0; i < GPUSIM_PROCESSES; i++)
		node->processes[i].seen_ns = 0;
}

/* Behind the last one the clock runs on by itself, from where it stands. */
void gpusim_step_apart(void)
{
	struct gpusim_node *node = ready_node();
	struct clock_area *area = node ? area_of(node) : NULL;

	if (!area || !steps_leave(&area->steps))
		return;
	gpusim_lock(node);
	area->rates[!area->current] = (struct clock_rate){
		.real_ns = real_now_ns(),
		.virtual_ns = steps_now_ns(&area->steps),
		.speed_milli = wanted_speed(node),
	};
	__atomic_store_n(&area->current, !area->current, __ATOMIC_RELEASE);
	__atomic_store_n(&area->steps.is_on, 0, __ATOMIC_RELEASE);
	atomic_store(&node->stepped_ns, 0);
	forget_samples(node);
	gpusim_unlock(node);
}
