/*
 * The driver keeps the physical memory of all graphs of a device together and
 * maps it when a graph is uploaded or launched, not before. So an executable
 * graph is asked once for what its allocation nodes want of each card, and that is
 * reserved around its first launch; later launches find their memory still
 * there until it is trimmed. Whether a graph could use what another one left is
 * the driver's to know: it is asked for as if it could not.
 */
#include "memory/graphs.h"

#include "books/memory_limit.h"
#include "books/enter.h"
#include "books/holdings.h"
#include "driver/cards.h"
#include "driver/stream.h"
#include "slice/limits.h"
#include "overhead/overhead.h"

#include <pthread.h>

/* Each waits for room on one card, so more are of no use. */
enum { MOST_TRIES = 16 };

/* Recursive: want of room for a graph has them all looked at. */
static pthread_mutex_t growing = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
/* Of the cards' graph memory; under `growing`. */
static uint64_t charged[LIMITS_CARDS];
static CUdevice devices[LIMITS_CARDS];
/* That took something; graphs backed before the last must ask again. Under `growing`. */
static uint32_t trims[LIMITS_CARDS];

void graphs_after_fork(void)
{
	growing = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	for (unsigned i = 0; i < LIMITS_CARDS; i++)
		charged[i] = 0;
}

static uint64_t graph_number(CUdevice device, CUgraphMem_attribute attribute)
{
	cuuint64_t bytes = 0;

	if (!cuda.cuDeviceGetGraphMemAttribute ||
	    cuda.cuDeviceGetGraphMemAttribute(device, attribute, &bytes) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

/* Brings the charge to what is reserved now. With the lock. */
static uint64_t follow(int card, CUdevice device)
{
	const uint64_t now = graph_number(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);

	if (card >= 0 && now != charged[card]) {
		account_adjust(card, ACCOUNT_USED, charged[card], now);
		charged[card] = now;
		devices[card] = device;
	}
	return now;
}

/* A graph has an entry for each card, numbered from 0. User addresses leave the highest byte free.
 */
static uint64_t part_key(uint64_t exec, unsigned number)
{
	return exec ^ ((uint64_t)number << 56);
}

void graphs_forget(CUgraphExec exec)
{
	struct holding part;
	unsigned number = 0;

	while (holdings_take(KIND_GRAPH, part_key((uint64_t)(uintptr_t)exec, number), &part))
		number++;
}

static void remember(CUgraphExec exec, unsigned number, int card, CUdevice device, uint64_t bytes)
{
	const struct holding part = {.key = part_key((uint64_t)(uintptr_t)exec, number),
				     .kind = KIND_GRAPH,
				     .card = (int16_t)card,
				     .bytes = bytes,
				     .other = (uint64_t)device};

	holdings_put(&part);
}

void graphs_remember(CUgraphExec exec, const struct graph_wants *wants)
{
	unsigned number = 0;

	graphs_forget(exec);
	if (wants->is_foreign)
		remember(exec, number++, CARD_FOREIGN, 0, 0);
	for (int card = 0; card < LIMITS_CARDS; card++)
		if (wants->bytes[card])
			remember(exec, number++, card, wants->devices[card], wants->bytes[card]);
}

/* Gives back what no graph uses just now; if that is anything, all ask again. With the lock. */
static CUresult trim(int card, CUdevice device)
{
	calls_begin();
	const CUresult result = cuda.cuDeviceGraphMemTrim(device);
	const uint64_t before = card < 0 ? 0 : charged[card];

	if (follow(card, device) < before)
		trims[card]++;
	calls_end();
	return result;
}

void graphs_refresh(int card)
{
	/* The thread that holds it may wait for the lock of pools, which this one may hold. */
	if (!cuda.cuDeviceGraphMemTrim || pthread_mutex_trylock(&growing) != 0)
		return;
	if (charged[card]) {
		const CUstreamCaptureMode mode = capture_exempt();

		trim(card, devices[card]);
		capture_restore(mode);
	}
	pthread_mutex_unlock(&growing);
}

/* `reserve` asks the books. With the lock. */
static CUresult begin_part(struct graph_part *part, const struct holding *wanted,
			   __typeof__(account_reserve) *reserve)
{
	const bool has_memory = wanted->card >= 0 && wanted->tag == trims[wanted->card] + 1;
	CUresult result = CUDA_SUCCESS;

	*part = (struct graph_part){.card = wanted->card,
				    .device = (CUdevice)wanted->other,
				    .reserved = has_memory ? 0 : wanted->bytes};
	if (part->card < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	follow(part->card, part->device);
	if (!has_memory)
		result = reserve(part->card, ACCOUNT_USED, part->reserved);
	part->before = follow(part->card, part->device);
	return result;
}

/*
 * All cards, or none. Only the first card of a try waits for what others have reserved: with
 * something reserved this thread must not wait, since others may wait for it. So a card that has no
 * room is the first of the next try. With the lock.
 */
static CUresult begin_parts(struct graph_growth *growth, const struct holding *wanted)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	unsigned first = 0, begun = 1;

	for (unsigned tries = 0; tries < MOST_TRIES && begun; tries++) {
		unsigned next = first;

		for (begun = 0; begun < growth->count; begun++) {
			result = begin_part(&growth->parts[next], &wanted[next],
					    begun ? account_reserve_now : account_reserve);
			if (result != CUDA_SUCCESS)
				break;
			next = (next + 1) % growth->count;
		}
		if (result == CUDA_SUCCESS)
			return result;
		for (unsigned one = first; one != next; one = (one + 1) % growth->count)
			account_settle(growth->parts[one].card, ACCOUNT_USED,
				       growth->parts[one].reserved, 0);
		first = next;
	}
	growth->count = 0;
	return result;
}

CUresult graph_begin(struct graph_growth *growth, CUgraphExec exec, CUstream stream)
{
	struct holding wanted[LIMITS_CARDS];

	growth->exec = (uint64_t)(uintptr_t)exec;
	growth->count = 0;
	if (!holdings_get(KIND_GRAPH, part_key(growth->exec, 0), &wanted[0]) || capture_has(stream))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&growing);
	while (growth->count < LIMITS_CARDS &&
	       holdings_get(KIND_GRAPH, part_key(growth->exec, growth->count),
			    &wanted[growth->count]))
		growth->count++;
	const CUresult result = growth->count ? begin_parts(growth, wanted) : CUDA_SUCCESS;

	if (!growth->count)
		pthread_mutex_unlock(&growing);
	return result;
}

/* What the card's graph memory has grown by is charged. With the lock. */
static void end_part(const struct graph_part *part)
{
	const uint64_t now = graph_number(part->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
	const uint64_t grown = now > part->before ? now - part->before : 0;

	account_settle(part->card, ACCOUNT_USED, part->reserved, grown);
	charged[part->card] += grown;
	devices[part->card] = part->device;
	follow(part->card, part->device);
}

void graph_end(struct graph_growth *growth, CUresult result)
{
	for (unsigned i = 0; i < growth->count; i++) {
		end_part(&growth->parts[i]);
		holdings_lock();
		struct holding *wanted = holdings_at(KIND_GRAPH, part_key(growth->exec, i));

		if (wanted && result == CUDA_SUCCESS)
			wanted->tag = trims[growth->parts[i].card] + 1; /* 0: not yet backed */
		holdings_unlock();
	}
	if (growth->count)
		pthread_mutex_unlock(&growing);
}

CUresult graph_upload(CUgraphExec exec, CUstream stream, CUstream named,
		      __typeof__(cuGraphUpload) *real)
{
	struct graph_growth growth;
	CUresult result = graph_begin(&growth, exec, named);

	if (result == CUDA_SUCCESS) {
		result = real(exec, stream);
		graph_end(&growth, result);
	}
	return result;
}

#define UPLOADS(named, name)                                                                       \
	CUresult name(CUgraphExec exec, CUstream stream)                                           \
	{                                                                                          \
		ENTER(name, exec, stream);                                                         \
		return graph_upload(exec, stream, named, cuda.name);                               \
	}

UPLOADS(stream, cuGraphUpload)
UPLOADS(stream_per_thread(stream), cuGraphUpload_ptsz)

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	ENTER(cuDeviceGraphMemTrim, device);
	pthread_mutex_lock(&growing);
	const CUresult result = trim(card_of_device(device), device);

	pthread_mutex_unlock(&growing);
	return result;
}

HOOK(cuGraphExecDestroy, (CUgraphExec exec), (exec), graphs_forget(exec), overhead_note_unload())
