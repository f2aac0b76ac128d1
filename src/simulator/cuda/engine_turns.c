/* Which tenant's kernels are on the card, and for how long: processes take turns. */
#include "engine.h"

#include <string.h>

struct engine_item *engine_head(struct engine_stream *stream)
{
	return stream->head == stream->tail ? NULL : &stream->items[stream->head % ENGINE_ITEMS];
}

uint64_t engine_until_there(const struct engine *engine, const struct engine_item *item)
{
	return item->there_ns > engine->now_ns ? item->there_ns - engine->now_ns : 0;
}

static uint64_t timeslice(const struct engine *engine)
{
	return engine->timeslice_ns << ENGINE_FRACTION;
}

static uint64_t change(const struct engine *engine)
{
	return engine->costs.change_ns << ENGINE_FRACTION;
}

static bool has_kernel(struct engine *engine, uint32_t active)
{
	const struct engine_item *head = engine_head(&engine->streams[engine->active[active]]);

	/* Events that cost something are done by the card too; those behind a copy by its engine.
	 */
	return head && !engine_until_there(engine, head) &&
	       (head->kind == ENGINE_KERNEL || (head->kind == ENGINE_MARKER && !head->other));
}

/* Notes for each tenant how many of its streams have a kernel next. True when any has. */
static bool count_kernels(struct engine *engine)
{
	bool is_busy = false;

	for (uint32_t i = 0; i < ENGINE_PARTITIONS; i++) {
		engine->turns[i].tenants = 0;
		engine->tenants[engine->turns[i].holder].runnable = 0;
	}
	memset(engine->copying, 0, sizeof(engine->copying));
	for (uint32_t i = 0; i < engine->active_count; i++) {
		struct engine_stream *stream = &engine->streams[engine->active[i]];
		const struct engine_item *head = engine_head(stream);

		engine->tenants[stream->tenant].runnable = 0;
		if (head && head->kind == ENGINE_COPY && !engine_until_there(engine, head))
			engine->copying[head->other % ENGINE_BUSES]++;
	}
	for (uint32_t i = 0; i < engine->active_count; i++) {
		struct engine_tenant *tenant =
			&engine->tenants[engine->streams[engine->active[i]].tenant];

		if (!has_kernel(engine, i))
			continue;
		if (tenant->runnable++ == 0)
			engine->turns[tenant->partition % ENGINE_PARTITIONS].tenants++;
		is_busy = true;
	}
	return is_busy;
}

/* Round robin, in the order of their numbers: the next with a kernel, at last `after` itself. */
static uint32_t next_tenant(struct engine *engine, uint32_t partition, uint32_t after)
{
	uint32_t nearest = ENGINE_TENANTS;

	for (uint32_t i = 0; i < engine->active_count; i++) {
		uint32_t each = engine->streams[engine->active[i]].tenant;
		uint32_t distance = (each - after - 1) % ENGINE_TENANTS;

		if (has_kernel(engine, i) &&
		    engine->tenants[each].partition % ENGINE_PARTITIONS == partition &&
		    distance < nearest)
			nearest = distance;
	}
	return (after + 1 + nearest) % ENGINE_TENANTS;
}

/* Who has nothing for the card loses the rest of its turn. */
static void pass_on(struct engine *engine, uint32_t partition)
{
	struct engine_turn *turn = &engine->turns[partition];
	const struct engine_tenant *holder = &engine->tenants[turn->holder];

	if (!turn->tenants || (turn->left && holder->is_open && holder->runnable &&
			       holder->partition % ENGINE_PARTITIONS == partition))
		return;
	const uint32_t next = next_tenant(engine, partition, turn->holder);

	turn->away = next == turn->holder ? 0 : change(engine);
	turn->holder = next;
	turn->left = timeslice(engine);
}

bool engine_take_turns(struct engine *engine)
{
	bool is_busy = count_kernels(engine);

	for (uint32_t i = 0; is_busy && i < ENGINE_PARTITIONS; i++)
		pass_on(engine, i);
	return is_busy;
}

uint64_t engine_divisor(const struct engine *engine, const struct engine_stream *stream)
{
	const struct engine_tenant *tenant = &engine->tenants[stream->tenant];
	const struct engine_turn *turn = &engine->turns[tenant->partition % ENGINE_PARTITIONS];

	if (turn->holder != stream->tenant || turn->away)
		return 0;
	if (tenant->runnable < 2)
		return ENGINE_ALONE;
	return (uint64_t)tenant->runnable * ENGINE_ALONE * 100 /
	       (100 + engine->costs.overlap_percent);
}

uint64_t engine_copy_divisor(const struct engine *engine, const struct engine_item *copy)
{
	const uint32_t bus = copy->other % ENGINE_BUSES;

	return bus == ENGINE_ON_CARD ? ENGINE_ALONE : (uint64_t)engine->copying[bus] * ENGINE_ALONE;
}

uint64_t engine_turns_end(const struct engine *engine, uint64_t limit)
{
	for (uint32_t i = 0; i < ENGINE_PARTITIONS; i++) {
		const struct engine_turn *turn = &engine->turns[i];

		const uint64_t end = turn->away ? turn->away : turn->left;

		if (turn->tenants && end < limit)
			limit = end;
	}
	return limit;
}

void engine_spend_turns(struct engine *engine, uint64_t step)
{
	for (uint32_t i = 0; i < ENGINE_PARTITIONS; i++) {
		struct engine_turn *turn = &engine->turns[i];

		uint64_t *spent = turn->away ? &turn->away : &turn->left;

		if (turn->tenants)
			*spent -= step < *spent ? step : *spent;
	}
}

/* How much of its turn a tenant will use: its kernels up to something that it must wait for. */
static uint64_t demand(struct engine *engine, uint32_t tenant, uint64_t limit)
{
	uint64_t wanted = 0;

	for (uint32_t i = 0; i < engine->active_count && wanted < limit; i++) {
		const struct engine_stream *stream = &engine->streams[engine->active[i]];

		for (uint32_t at = stream->head; stream->tenant == tenant && at != stream->tail;
		     at++) {
			const struct engine_item *item = &stream->items[at % ENGINE_ITEMS];

			if (item->kind != ENGINE_KERNEL && item->kind != ENGINE_MARKER)
				break;
			wanted += item->amount;
		}
	}
	return wanted < limit ? wanted : limit;
}

uint64_t engine_until_turn(struct engine *engine, uint32_t tenant)
{
	uint32_t partition = engine->tenants[tenant].partition % ENGINE_PARTITIONS;
	const struct engine_turn *turn = &engine->turns[partition];
	uint64_t wait;

	if (!engine_take_turns(engine) || !engine->tenants[tenant].runnable)
		return 0;
	wait = turn->away;
	for (uint32_t each = turn->holder; each != tenant;
	     each = next_tenant(engine, partition, each))
		wait += change(engine) +
			demand(engine, each, each == turn->holder ? turn->left : timeslice(engine));
	return wait;
}
