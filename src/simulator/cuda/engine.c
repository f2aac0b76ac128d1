#include "engine.h"

#include <errno.h>
#include <string.h>

void engine_lay_out(struct engine *engine)
{
	pthread_mutexattr_t attributes;

	if (engine->layout == ENGINE_LAYOUT)
		return;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&engine->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	engine->timeslice_ns = ENGINE_TIMESLICE_NS;
	__atomic_store_n(&engine->layout, ENGINE_LAYOUT, __ATOMIC_RELEASE);
}

void engine_set_timeslice(struct engine *engine, uint64_t timeslice_ns)
{
	engine_lock(engine);
	engine->timeslice_ns = timeslice_ns;
	engine_unlock(engine);
}

void engine_get_costs(struct engine *engine, struct engine_costs *costs)
{
	engine_lock(engine);
	*costs = engine->costs;
	engine_unlock(engine);
}

void engine_set_costs(struct engine *engine, const struct engine_costs *costs)
{
	engine_lock(engine);
	engine->costs = *costs;
	engine_unlock(engine);
}

/*
 * A process that dies here leaves at worst one item of its own half written:
 * `tail` moves last in a push, `head` last in a pop, so the rings stay whole.
 */
void engine_lock(struct engine *engine)
{
	if (pthread_mutex_lock(&engine->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&engine->lock);
}

void engine_unlock(struct engine *engine)
{
	pthread_mutex_unlock(&engine->lock);
}

void engine_open_tenant(struct engine *engine, uint32_t tenant, int32_t pid, uint64_t start_ticks,
			uint32_t partition)
{
	engine_close_tenant(engine, tenant);
	engine_lock(engine);
	engine->tenants[tenant] = (struct engine_tenant){
		.is_open = 1,
		.pid = pid,
		.start_ticks = start_ticks,
		.partition = partition,
	};
	engine_unlock(engine);
}

/* The work of a process ends with it. */
void engine_close_tenant(struct engine *engine, uint32_t tenant)
{
	engine_lock(engine);
	if (engine->tenants[tenant].is_open) {
		for (uint32_t i = 0; i < engine->streams_ever; i++) {
			struct engine_stream *stream = &engine->streams[i];

			if (!stream->is_open || stream->tenant != tenant)
				continue;
			stream->head = stream->tail;
			stream->is_open = 0;
		}
		engine->tenants[tenant].is_open = 0;
	}
	engine_unlock(engine);
}

int engine_open_stream(struct engine *engine, uint32_t tenant)
{
	int opened = -1;

	engine_lock(engine);
	for (int i = 0; i < ENGINE_STREAMS && opened < 0; i++) {
		struct engine_stream *stream = &engine->streams[i];

		if (stream->is_open)
			continue;
		stream->generation++;
		stream->tenant = tenant;
		stream->is_closing = 0;
		stream->head = stream->tail = 0;
		stream->marked = stream->reached = 0;
		stream->is_copying = 0;
		stream->is_open = 1;
		if (engine->streams_ever <= (uint32_t)i)
			engine->streams_ever = (uint32_t)i + 1;
		opened = i;
	}
	engine_unlock(engine);
	return opened;
}

void engine_close_stream(struct engine *engine, int stream)
{
	struct engine_stream *closing = &engine->streams[stream];

	engine_lock(engine);
	closing->is_closing = 1;
	if (closing->head == closing->tail)
		closing->is_open = 0;
	engine_unlock(engine);
}

/* A launch right behind a launch shares its item; so a full ring is about 1024 launches. */
static bool merge(struct engine_stream *stream, const struct engine_item *item)
{
	struct engine_item *last = &stream->items[(stream->tail - 1) % ENGINE_ITEMS];

	if (item->kind != ENGINE_KERNEL || stream->tail - stream->head < 2 ||
	    last->kind != ENGINE_KERNEL || last->launches >= ENGINE_MERGED)
		return false;
	last->launches++;
	last->amount += item->amount << ENGINE_FRACTION;
	return true;
}

/* Of `permille` to both sides; the same on each run. */
static int64_t jitter(struct engine *engine, uint64_t permille)
{
	engine->seed = engine->seed * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((engine->seed >> 33) % (2 * permille + 1)) - (int64_t)permille;
}

/* How long a kernel takes this time. */
static uint64_t kernel_ns(struct engine *engine, const struct engine_stream *stream,
			  const struct engine_item *item, uint64_t now_ns)
{
	const struct engine_costs *costs = &engine->costs;
	const struct engine_item *front = &stream->items[(stream->tail - 1) % ENGINE_ITEMS];
	uint64_t ns = item->amount;

	ns += ns * costs->clock_permille * engine_last_percent(engine, now_ns) / 100000;
	if (costs->jitter_permille)
		ns = (uint64_t)((int64_t)ns +
				(int64_t)ns * jitter(engine, costs->jitter_permille) / 1000);
	if (item->is_programmatic && stream->tail != stream->head && front->kind == ENGINE_KERNEL)
		ns -= ns * costs->programmatic_percent / 100;
	return ns;
}

/* More of the stream's time for an event that costs something, right behind a queued kernel. */
static uint64_t behind_ns(const struct engine *engine, const struct engine_stream *stream)
{
	const struct engine_item *front = &stream->items[(stream->tail - 1) % ENGINE_ITEMS];

	return stream->tail != stream->head && front->kind == ENGINE_KERNEL
		       ? engine->costs.event_behind_ns
		       : 0;
}

/* A process killed between the two stores leaves an empty entry's number in both lists: harmless.
 */
static void activate(struct engine *engine, uint32_t stream)
{
	for (uint32_t i = 0; i < engine->active_count; i++) {
		if (engine->active[i] == stream)
			return;
	}
	if (engine->active_count < ENGINE_STREAMS) {
		engine->active[engine->active_count] = stream;
		engine->active_count++;
	}
}

bool engine_push(struct engine *engine, int stream, struct engine_item item, uint64_t now_ns,
		 uint64_t *number)
{
	struct engine_stream *target = &engine->streams[stream];
	bool fits;

	engine_lock(engine);
	engine_advance(engine, now_ns);
	fits = target->tail - target->head < ENGINE_ITEMS;
	if (fits && item.kind == ENGINE_MARKER) {
		item.number = ++target->marked;
		item.other = target->is_copying;
		item.amount += item.amount ? behind_ns(engine, target) : 0;
		if (number)
			*number = item.number;
	}
	if (item.kind == ENGINE_KERNEL || item.kind == ENGINE_COPY || item.kind == ENGINE_MARKER)
		item.there_ns = now_ns + engine->costs.submit_ns;
	if (fits && (item.kind == ENGINE_KERNEL || item.kind == ENGINE_COPY))
		target->is_copying = item.kind == ENGINE_COPY;
	if (fits && item.kind == ENGINE_KERNEL)
		item.amount = kernel_ns(engine, target, &item, now_ns);
	if (fits && !merge(target, &item)) {
		item.amount <<= ENGINE_FRACTION;
		target->items[target->tail % ENGINE_ITEMS] = item;
		target->tail++;
		activate(engine, (uint32_t)stream);
		engine_advance(engine, now_ns);
	}
	engine_unlock(engine);
	return fits;
}

bool engine_pop_host(struct engine *engine, int stream, uint64_t now_ns,
		     bool (*is_due)(uint64_t cookie), uint64_t *cookie)
{
	struct engine_stream *target = &engine->streams[stream];
	bool found = false;

	engine_lock(engine);
	engine_advance(engine, now_ns);
	if (target->head != target->tail) {
		const struct engine_item *item = &target->items[target->head % ENGINE_ITEMS];

		if (item->kind == ENGINE_HOST && is_due(item->number)) {
			*cookie = item->number;
			target->head++;
			found = true;
		}
	}
	engine_unlock(engine);
	return found;
}

struct engine_view engine_look(struct engine *engine, int stream, uint64_t now_ns)
{
	struct engine_stream *target = &engine->streams[stream];
	struct engine_view view = {0};

	engine_lock(engine);
	engine_advance(engine, now_ns);
	view.reached = target->reached;
	view.queued = target->tail - target->head;
	for (uint32_t i = target->head; i != target->tail; i++) {
		const struct engine_item *item = &target->items[i % ENGINE_ITEMS];

		if (item->kind == ENGINE_KERNEL || item->kind == ENGINE_COPY ||
		    item->kind == ENGINE_MARKER)
			view.left_ns += item->amount >> ENGINE_FRACTION;
	}
	if (view.queued)
		view.left_ns += engine_until_there(engine, engine_head(target));
	if (view.left_ns)
		view.left_ns += engine_until_turn(engine, target->tenant) >> ENGINE_FRACTION;
	if (view.queued)
		view.host_is_next = target->items[target->head % ENGINE_ITEMS].kind == ENGINE_HOST;
	engine_unlock(engine);
	return view;
}

uint64_t engine_marker_ns(const struct engine *engine, int stream, uint64_t number)
{
	return engine->streams[stream].marker_ns[number % ENGINE_MARKERS];
}

uint64_t engine_served_ns(struct engine *engine, uint32_t tenant)
{
	uint64_t served;

	engine_lock(engine);
	served = engine->tenants[tenant].served >> ENGINE_FRACTION;
	engine_unlock(engine);
	return served;
}

unsigned engine_busy_percent(struct engine *engine, uint64_t now_ns)
{
	unsigned percent;

	engine_lock(engine);
	engine_advance(engine, now_ns);
	percent = engine_last_percent(engine, now_ns);
	engine_unlock(engine);
	return percent;
}
