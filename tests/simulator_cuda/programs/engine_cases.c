/* The virtual card by itself: every time here is an argument, so every result
 * is exact. */
#include "check.h"

#include "engine.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS 1000000ull
#define SLICE ENGINE_TIMESLICE_NS

static struct engine *new_engine(void)
{
	struct engine *engine = mmap(NULL, sizeof(*engine), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	engine_lay_out(engine);
	return engine;
}

static int tenant_stream(struct engine *engine, uint32_t tenant)
{
	if (!engine->tenants[tenant].is_open)
		engine_open_tenant(engine, tenant, (int32_t)tenant + 1, 1, 0);
	return engine_open_stream(engine, tenant);
}

static void push(struct engine *engine, int stream, enum engine_kind kind, uint64_t ns,
		 uint64_t now)
{
	struct engine_item item = {.kind = kind, .launches = 1, .amount = ns};

	CHECK(engine_push(engine, stream, item, now, NULL));
}

static uint64_t mark(struct engine *engine, int stream, uint64_t now)
{
	uint64_t number;

	CHECK(engine_push(engine, stream, (struct engine_item){.kind = ENGINE_MARKER}, now,
			  &number));
	return number;
}

static uint64_t reached(struct engine *engine, int stream, uint64_t number, uint64_t now)
{
	CHECK(engine_look(engine, stream, now).reached >= number);
	return engine_marker_ns(engine, stream, number);
}

/* A kernel behind nothing else, and the marker behind it. */
static uint64_t push_marked(struct engine *engine, int stream, uint64_t ns, uint64_t now)
{
	push(engine, stream, ENGINE_KERNEL, ns, now);
	return mark(engine, stream, now);
}

static void tenants_take_turns_and_streams_share_their_tenants(void)
{
	struct engine *engine = new_engine();
	int two = tenant_stream(engine, 1);
	int second_of_two = tenant_stream(engine, 1);
	int three = tenant_stream(engine, 2);
	uint64_t marks[3];

	marks[0] = push_marked(engine, two, 2 * SLICE, 0);
	marks[1] = push_marked(engine, second_of_two, 2 * SLICE, 0);
	marks[2] = push_marked(engine, three, 2 * SLICE, 0);
	/* Two, three, two, three, and two has the card for itself. */
	CHECK_EQUAL(reached(engine, three, marks[2], 100 * MS), 4 * SLICE);
	CHECK_EQUAL(reached(engine, two, marks[0], 100 * MS), 6 * SLICE);
	CHECK_EQUAL(reached(engine, second_of_two, marks[1], 100 * MS), 6 * SLICE);
	CHECK_EQUAL(engine_served_ns(engine, 1), 4 * SLICE);
	CHECK_EQUAL(engine->busy_ns, 6 * SLICE);
}

static void three_tenants_come_in_their_order(void)
{
	struct engine *engine = new_engine();
	uint64_t marks[3];
	int streams[3];

	for (uint32_t i = 0; i < 3; i++)
		streams[i] = tenant_stream(engine, i);
	for (uint32_t i = 3; i-- > 0;)
		marks[i] = push_marked(engine, streams[i], SLICE + 1, 0);
	/* One came first after nobody (tenant 0 had the turn last), then two, then
	 * nought. */
	CHECK_EQUAL(reached(engine, streams[1], marks[1], 100 * MS), 3 * SLICE + 1);
	CHECK_EQUAL(reached(engine, streams[2], marks[2], 100 * MS), 3 * SLICE + 2);
	CHECK_EQUAL(reached(engine, streams[0], marks[0], 100 * MS), 3 * SLICE + 3);
}

static void a_late_comer_waits_for_the_end_of_the_turn(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	int two = tenant_stream(engine, 1);
	uint64_t first = push_marked(engine, one, 10 * SLICE, 0);
	uint64_t second = push_marked(engine, two, SLICE / 2, SLICE / 4);

	CHECK_EQUAL(engine_look(engine, two, SLICE / 4).left_ns, SLICE * 3 / 4 + SLICE / 2);
	CHECK_EQUAL(reached(engine, two, second, 100 * MS), SLICE + SLICE / 2);
	CHECK_EQUAL(reached(engine, one, first, 100 * MS), 10 * SLICE + SLICE / 2);
}

/* What an even split does not show: 20 ms beside 100 us each waited for is ten
 * to one. */
static void who_has_nothing_next_loses_its_turn(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	int two = tenant_stream(engine, 1);
	uint64_t now = 0;

	push(engine, one, ENGINE_KERNEL, 1000 * MS, 0);
	for (int i = 0; i < 100; i++) {
		uint64_t number = push_marked(engine, two, 100000, ++now);

		now += engine_look(engine, two, now).left_ns;
		CHECK_EQUAL(reached(engine, two, number, now), now);
	}
	CHECK_EQUAL(now, 100 * (SLICE + 100000));
	CHECK_EQUAL(engine_served_ns(engine, 0), 100 * SLICE);
	CHECK_EQUAL(engine_served_ns(engine, 1), 100 * 100000);
}

static void the_length_of_a_turn_can_be_chosen(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	int two = tenant_stream(engine, 1);
	uint64_t second;

	engine_set_timeslice(engine, 2 * MS);
	push(engine, one, ENGINE_KERNEL, 10 * MS, 0);
	engine_look(engine, one, 1);
	second = push_marked(engine, two, 3 * MS, 1);
	CHECK_EQUAL(reached(engine, two, second, 100 * MS), 7 * MS);
}

static void how_often_one_looks_changes_nothing(void)
{
	struct engine *rarely = new_engine();
	struct engine *often = new_engine();
	struct engine *engines[] = {rarely, often};
	uint64_t marks[2][7];
	int streams[7];

	for (int e = 0; e < 2; e++) {
		for (int i = 0; i < 7; i++) {
			streams[i] = tenant_stream(engines[e], (uint32_t)i / 2);
			push(engines[e], streams[i], ENGINE_KERNEL, (uint64_t)(i + 1) * 1234567, 0);
			marks[e][i] = mark(engines[e], streams[i], 0);
		}
	}
	for (uint64_t now = 0; now < 100 * MS; now += 3333)
		engine_look(often, streams[0], now);
	for (int i = 0; i < 7; i++)
		CHECK_NEAR(reached(often, streams[i], marks[1][i], 100 * MS),
			   reached(rarely, streams[i], marks[0][i], 100 * MS), 30000);
}

static void partitions_share_nothing(void)
{
	struct engine *engine = new_engine();
	int streams[2];
	uint64_t marks[2];

	for (uint32_t i = 0; i < 2; i++) {
		engine_open_tenant(engine, i, 1, 1, i + 1);
		streams[i] = engine_open_stream(engine, i);
		push(engine, streams[i], ENGINE_KERNEL, 10 * MS, 0);
		marks[i] = mark(engine, streams[i], 0);
	}
	CHECK_EQUAL(reached(engine, streams[0], marks[0], 100 * MS), 10 * MS);
	CHECK_EQUAL(reached(engine, streams[1], marks[1], 100 * MS), 10 * MS);
}

static void copies_do_not_slow_kernels(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	int two = tenant_stream(engine, 0);
	uint64_t first;
	uint64_t second;

	push(engine, one, ENGINE_KERNEL, 10 * MS, 0);
	push(engine, two, ENGINE_COPY, 10 * MS, 0);
	first = mark(engine, one, 0);
	second = mark(engine, two, 0);
	CHECK_EQUAL(reached(engine, one, first, 100 * MS), 10 * MS);
	CHECK_EQUAL(reached(engine, two, second, 100 * MS), 10 * MS);
}

static void a_wait_holds_its_stream_and_nobody_else(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	int two = tenant_stream(engine, 0);
	struct engine_item wait = {.kind = ENGINE_WAIT};
	uint64_t second;

	push(engine, one, ENGINE_KERNEL, 10 * MS, 0);
	wait.number = mark(engine, one, 0);
	wait.other = (uint32_t)one;
	wait.generation = engine->streams[one].generation;
	CHECK(engine_push(engine, two, wait, 0, NULL));
	push(engine, two, ENGINE_KERNEL, 1 * MS, 0);
	second = mark(engine, two, 0);
	CHECK_EQUAL(reached(engine, two, second, 100 * MS), 11 * MS);
}

static void the_dead_leave_the_card_to_the_living(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	int two = tenant_stream(engine, 1);
	uint64_t first;

	push(engine, one, ENGINE_KERNEL, 40 * MS, 0);
	first = mark(engine, one, 0);
	push(engine, two, ENGINE_KERNEL, 1000 * MS, 0);
	engine_look(engine, one, 10 * SLICE);
	engine_close_tenant(engine, 1);
	CHECK_EQUAL(reached(engine, one, first, 100 * MS), 40 * MS + 5 * SLICE);
}

static void a_full_ring_refuses_and_takes_again(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	struct engine_item item = {.kind = ENGINE_KERNEL, .launches = 1, .amount = MS};
	int pushed = 0;

	while (engine_push(engine, one, item, 0, NULL))
		pushed++;
	CHECK(pushed > 900 && pushed <= 1024);
	CHECK(engine_push(engine, one, item, 100 * MS, NULL));
	CHECK_EQUAL(engine_look(engine, one, 10000 * MS).queued, 0);
	CHECK_EQUAL(engine_served_ns(engine, 0), (uint64_t)(pushed + 1) * MS);
}

static void utilisation_is_that_of_the_last_whole_window(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);
	uint64_t start = 60 * ENGINE_WINDOW_NS;

	push(engine, one, ENGINE_KERNEL, ENGINE_WINDOW_NS / 2, start);
	CHECK_EQUAL(engine_busy_percent(engine, start + ENGINE_WINDOW_NS), 50);
	push(engine, one, ENGINE_KERNEL, 3 * ENGINE_WINDOW_NS, start + ENGINE_WINDOW_NS);
	CHECK_EQUAL(engine_busy_percent(engine, start + 2 * ENGINE_WINDOW_NS), 100);
	CHECK_EQUAL(engine_busy_percent(engine, start + 6 * ENGINE_WINDOW_NS), 0);
}

static struct engine *costly_engine(struct engine_costs costs)
{
	struct engine *engine = new_engine();

	engine_set_costs(engine, &costs);
	return engine;
}

static uint64_t push_event(struct engine *engine, int stream)
{
	uint64_t number;
	struct engine_item item = {.kind = ENGINE_MARKER, .amount = engine->costs.event_ns};

	CHECK(engine_push(engine, stream, item, 0, &number));
	return number;
}

static void an_event_takes_its_streams_time(void)
{
	struct engine *engine = costly_engine((struct engine_costs){.event_ns = 1500});
	int one = tenant_stream(engine, 0);
	uint64_t first = push_event(engine, one), second;

	push(engine, one, ENGINE_KERNEL, 5000, 0);
	second = push_event(engine, one);
	CHECK_EQUAL(reached(engine, one, first, MS), 1500);
	CHECK_EQUAL(reached(engine, one, second, MS), 1500 + 5000 + 1500);
	CHECK_EQUAL(engine_served_ns(engine, 0), 5000);
}

static void a_change_of_process_costs_the_card_time(void)
{
	const uint64_t change = 100000;
	struct engine *engine = costly_engine((struct engine_costs){.change_ns = change});
	int one = tenant_stream(engine, 0), two = tenant_stream(engine, 1);
	uint64_t first = push_marked(engine, one, 2 * SLICE, 0);
	uint64_t second = push_marked(engine, two, SLICE, SLICE / 4);

	/* Nobody's turn came before: the first began at once. */
	CHECK_EQUAL(engine_look(engine, two, SLICE / 4).left_ns, SLICE * 3 / 4 + change + SLICE);
	CHECK_EQUAL(reached(engine, two, second, 100 * MS), 2 * SLICE + change);
	CHECK_EQUAL(reached(engine, one, first, 100 * MS), 3 * SLICE + 2 * change);
	CHECK_EQUAL(engine_served_ns(engine, 0), 2 * SLICE);
}

static void kernels_differ_around_what_they_take(void)
{
	struct engine *engine = costly_engine((struct engine_costs){.jitter_permille = 50});
	int one = tenant_stream(engine, 0);
	uint64_t all = 0, least = UINT64_MAX, most = 0;

	for (uint64_t start = 0; start < 2000 * MS; start += 2 * MS) {
		uint64_t number = push_marked(engine, one, MS, start);
		uint64_t took = reached(engine, one, number, start + 2 * MS) - start;

		least = took < least ? took : least;
		most = took > most ? took : most;
		all += took;
	}
	CHECK(least >= MS * 95 / 100 && least < MS * 96 / 100);
	CHECK(most <= MS * 105 / 100 && most > MS * 104 / 100);
	CHECK(all > 995 * MS && all < 1005 * MS);
}

static void a_busy_cards_clock_falls(void)
{
	struct engine *engine = costly_engine((struct engine_costs){.clock_permille = 80});
	int one = tenant_stream(engine, 0);
	const uint64_t start = 1000 * ENGINE_WINDOW_NS;
	uint64_t first, later;

	first = push_marked(engine, one, MS, start);
	CHECK_EQUAL(reached(engine, one, first, start + 2 * MS), start + MS);
	push(engine, one, ENGINE_KERNEL, 3 * ENGINE_WINDOW_NS, start + 2 * MS);
	engine_look(engine, one, start + 10 * ENGINE_WINDOW_NS);
	push(engine, one, ENGINE_KERNEL, 2 * ENGINE_WINDOW_NS, start + 10 * ENGINE_WINDOW_NS);
	later = push_marked(engine, one, MS, start + 12 * ENGINE_WINDOW_NS);
	CHECK_EQUAL(reached(engine, one, later, start + 13 * ENGINE_WINDOW_NS),
		    start + 12 * ENGINE_WINDOW_NS + MS * 108 / 100);
}

static void streams_overlap_in_part(void)
{
	struct engine *engine = costly_engine((struct engine_costs){.overlap_percent = 25});
	int one = tenant_stream(engine, 0), two = engine_open_stream(engine, 0);
	uint64_t first = push_marked(engine, one, 100000, 0);
	uint64_t second = push_marked(engine, two, 100000, 0);

	/* Two of 100 us each take 160, not 200. */
	CHECK_NEAR(reached(engine, one, first, MS), 160000, 100);
	CHECK_NEAR(reached(engine, two, second, MS), 160000, 100);
	/* One alone takes what it takes. */
	first = push_marked(engine, one, 100000, MS);
	CHECK_EQUAL(reached(engine, one, first, 2 * MS), MS + 100000);
}

static void a_programmatic_launch_begins_before_the_end(void)
{
	struct engine *engine = costly_engine((struct engine_costs){.programmatic_percent = 10});
	int one = tenant_stream(engine, 0);
	struct engine_item early = {
		.kind = ENGINE_KERNEL, .launches = 1, .amount = 1000, .is_programmatic = 1};
	uint64_t number;

	CHECK(engine_push(engine, one, early, 0, NULL)); /* behind nothing */
	CHECK(engine_push(engine, one, early, 0, NULL));
	number = mark(engine, one, 0);
	CHECK_EQUAL(reached(engine, one, number, MS), 1900);
}

static void a_process_killed_while_it_pushes_stops_nobody(void)
{
	struct engine *engine = new_engine();
	int one = tenant_stream(engine, 0);

	for (int round = 0; round < 50; round++) {
		int two = tenant_stream(engine, 1);
		pid_t child = fork();

		if (child == 0) {
			for (uint64_t now = 0;; now += 100)
				engine_push(
					engine, two,
					(struct engine_item){.kind = ENGINE_KERNEL, .amount = 90},
					now, NULL);
		}
		usleep(500);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		engine_close_tenant(engine, 1);
		push(engine, one, ENGINE_KERNEL, 100, engine->now_ns);
	}
	CHECK_EQUAL(engine_look(engine, one, engine->now_ns + 1000 * MS).queued, 0);
}

CASES(CASE(tenants_take_turns_and_streams_share_their_tenants),
      CASE(three_tenants_come_in_their_order), CASE(a_late_comer_waits_for_the_end_of_the_turn),
      CASE(who_has_nothing_next_loses_its_turn), CASE(the_length_of_a_turn_can_be_chosen),
      CASE(how_often_one_looks_changes_nothing), CASE(partitions_share_nothing),
      CASE(copies_do_not_slow_kernels), CASE(a_wait_holds_its_stream_and_nobody_else),
      CASE(the_dead_leave_the_card_to_the_living), CASE(a_full_ring_refuses_and_takes_again),
      CASE(utilisation_is_that_of_the_last_whole_window), CASE(an_event_takes_its_streams_time),
      CASE(a_change_of_process_costs_the_card_time), CASE(kernels_differ_around_what_they_take),
      CASE(a_busy_cards_clock_falls), CASE(streams_overlap_in_part),
      CASE(a_programmatic_launch_begins_before_the_end),
      CASE(a_process_killed_while_it_pushes_stops_nobody));
