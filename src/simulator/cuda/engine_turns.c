/* Which tenant's kernels are on the card, and for how long: processes take turns. */
#include "engine.h"

static uint64_t timeslice(const struct engine *engine)
{
	return engine->timeslice_ns << ENGINE_FRACTION;
}

static bool has_kernel(struct engine *engine, uint32_t active)
{
	const struct engine_item *head = engine_head(&engine->streams[engine->active[active]]);

	return head && head->kind == ENGINE_KERNEL;
}

/* Notes for each tenant how many of its streams have a kernel next. True when any has. */
static bool count_kernels(struct engine *engine)
{
	bool is_busy = false;

	for (uint32_t i = 0; i < ENGINE_PARTITIONS; i++) {
		engine->turns[i].tenants = 0;
		engine->tenants[engine->turns[i].holder].runnable = 0;
	}
	for (uint32_t i = 0; i < engine->active_count; i++)
		engine->tenants[engine->streams[engine->active[i]].tenant].runnable = 0;
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
	turn->holder = next_tenant(engine, partition, turn->holder);
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

	return turn->holder == stream->tenant ? tenant->runnable : 0;
}

uint64_t engine_turns_end(const struct engine *engine, uint64_t limit)
{
	for (uint32_t i = 0; i < ENGINE_PARTITIONS; i++) {
		const struct engine_turn *turn = &engine->turns[i];

		if (turn->tenants && turn->left < limit)
			limit = turn->left;
	}
	return limit;
}

void engine_spend_turns(struct engine *engine, uint64_t step)
{
	for (uint32_t i = 0; i < ENGINE_PARTITIONS; i++) {
		struct engine_turn *turn = &engine->turns[i];

		if (turn->tenants)
			turn->left -= step < turn->left ? step : turn->left;
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
			wanted += item->kind == ENGINE_KERNEL ? item->amount : 0;
		}
	}
	return wanted < limit ? wanted : limit;
}

uint64_t engine_until_turn(struct engine *engine, uint32_t tenant)
{
	uint32_t partition = engine->tenants[tenant].partition % ENGINE_PARTITIONS;
	const struct engine_turn *turn = &engine->turns[partition];
	uint64_t wait = 0;

	if (!engine_take_turns(engine) || !engine->tenants[tenant].runnable)
		return 0;
	for (uint32_t each = turn->holder; each != tenant;
	     each = next_tenant(engine, partition, each))
		wait += demand(engine, each, each == turn->holder ? turn->left : timeslice(engine));
	return wait;
}
