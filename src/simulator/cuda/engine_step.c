#include "engine.h"

#include <string.h>

/* A stream that ended, or was reopened by another, has nothing left to wait for. */
static bool is_over(const struct engine *engine, const struct engine_item *wait)
{
	const struct engine_stream *other = &engine->streams[wait->other];

	return !other->is_open || other->generation != wait->generation ||
	       other->reached >= wait->number;
}

/* Items that take no time end now. True when one did, which may free others. */
static bool settle_stream(struct engine *engine, struct engine_stream *stream)
{
	bool moved = false;

	for (struct engine_item *item; (item = engine_head(stream)); stream->head++, moved = true) {
		if (item->kind == ENGINE_HOST || engine_until_there(engine, item) ||
		    (item->kind == ENGINE_WAIT && !is_over(engine, item)))
			break;
		if ((item->kind == ENGINE_KERNEL || item->kind == ENGINE_COPY ||
		     item->kind == ENGINE_MARKER) &&
		    item->amount)
			break;
		if (item->kind == ENGINE_MARKER) {
			stream->marker_ns[item->number % ENGINE_MARKERS] = engine->now_ns;
			__atomic_store_n(&stream->reached, item->number, __ATOMIC_RELEASE);
		}
	}
	if (!engine_head(stream) && stream->is_closing)
		stream->is_open = 0;
	return moved;
}

static void settle(struct engine *engine)
{
	for (bool moved = true; moved;) {
		moved = false;
		for (uint32_t i = 0; i < engine->active_count; i++)
			moved |= settle_stream(engine, &engine->streams[engine->active[i]]);
	}
	for (uint32_t i = engine->active_count; i-- > 0;) {
		if (!engine_head(&engine->streams[engine->active[i]])) {
			engine->active[i] = engine->active[engine->active_count - 1];
			engine->active_count--;
		}
	}
}

/* The same of any head; one that takes no time has ended. */
static uint64_t divisor(const struct engine *engine, struct engine_stream *stream)
{
	const struct engine_item *head = engine_head(stream);

	if (engine_until_there(engine, head))
		return 0;
	switch (head->kind) {
	case ENGINE_MARKER:
		return head->other ? ENGINE_ALONE : engine_divisor(engine, stream);
	case ENGINE_KERNEL:
		return engine_divisor(engine, stream);
	case ENGINE_COPY:
		return engine_copy_divisor(engine, head);
	default:
		return 0;
	}
}

/* Rounded up: what is left then is never a little. */
static uint64_t scaled(uint64_t amount, uint64_t by, uint64_t of)
{
	return (uint64_t)(((unsigned __int128)amount * by + of - 1) / of);
}

/* Time until the first head or turn ends, at most `limit`; both in 2^-10 ns. */
static uint64_t next_end(struct engine *engine, uint64_t limit)
{
	limit = engine_turns_end(engine, limit);
	for (uint32_t i = 0; i < engine->active_count; i++) {
		struct engine_stream *stream = &engine->streams[engine->active[i]];
		uint64_t slower = divisor(engine, stream);
		uint64_t left = engine_head(stream)->amount;
		uint64_t wait = engine_until_there(engine, engine_head(stream)) << ENGINE_FRACTION;

		if (wait && wait < limit)
			limit = wait;
		if (slower && scaled(left, slower, ENGINE_ALONE) < limit)
			limit = scaled(left, slower, ENGINE_ALONE);
	}
	return limit;
}

static void serve(struct engine *engine, uint64_t step)
{
	for (uint32_t i = 0; i < engine->active_count; i++) {
		struct engine_stream *stream = &engine->streams[engine->active[i]];
		struct engine_item *item = engine_head(stream);
		uint64_t slower = divisor(engine, stream);
		uint64_t part;

		if (!slower)
			continue;
		part = (uint64_t)((unsigned __int128)step * ENGINE_ALONE / slower);
		item->amount -= part < item->amount ? part : item->amount;
		if (item->kind == ENGINE_KERNEL)
			engine->tenants[stream->tenant].served += part;
	}
	engine_spend_turns(engine, step);
}

/* Spreads busy time over the sampling windows it falls into. */
static void note_busy(struct engine *engine, uint64_t from_ns, uint64_t to_ns)
{
	engine->busy_ns += to_ns - from_ns;
	if (to_ns - from_ns > ENGINE_WINDOWS * ENGINE_WINDOW_NS)
		from_ns = to_ns - ENGINE_WINDOWS * ENGINE_WINDOW_NS;
	while (from_ns < to_ns) {
		uint64_t index = from_ns / ENGINE_WINDOW_NS;
		uint64_t end_ns = (index + 1) * ENGINE_WINDOW_NS;
		struct engine_window *window = &engine->windows[index % ENGINE_WINDOWS];

		if (end_ns > to_ns)
			end_ns = to_ns;
		if (window->index != index)
			*window = (struct engine_window){.index = index};
		window->busy_ns += end_ns - from_ns;
		from_ns = end_ns;
	}
}

/*
 * Moves the card from the time of the last look to `now_ns`, from one end of
 * an item or a turn to the next. A look into the past moves nothing.
 */
void engine_advance(struct engine *engine, uint64_t now_ns)
{
	settle(engine);
	while (engine->now_ns < now_ns) {
		bool is_busy = engine_take_turns(engine);
		uint64_t span_ns = now_ns - engine->now_ns;
		uint64_t step;

		if (!engine->active_count) {
			engine->now_ns = now_ns;
			break;
		}
		if (span_ns > UINT64_MAX >> (ENGINE_FRACTION + 1))
			span_ns = UINT64_MAX >> (ENGINE_FRACTION + 1);
		step = next_end(engine, span_ns << ENGINE_FRACTION);
		/* Whole nanoseconds, rounded up: an end is never noted before it was. */
		span_ns = (step + (1u << ENGINE_FRACTION) - 1) >> ENGINE_FRACTION;
		serve(engine, step);
		if (is_busy)
			note_busy(engine, engine->now_ns, engine->now_ns + span_ns);
		engine->now_ns += span_ns;
		settle(engine);
	}
}

unsigned engine_last_percent(const struct engine *engine, uint64_t now_ns)
{
	uint64_t last = now_ns / ENGINE_WINDOW_NS;
	unsigned percent = 0;

	if (last > 0 && engine->windows[(last - 1) % ENGINE_WINDOWS].index == last - 1)
		percent = (unsigned)((engine->windows[(last - 1) % ENGINE_WINDOWS].busy_ns * 100 +
				      ENGINE_WINDOW_NS / 2) /
				     ENGINE_WINDOW_NS);
	return percent > 100 ? 100 : percent;
}
