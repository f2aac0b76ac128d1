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
#include <stdatomic.h>

static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;
static uint64_t charged[LIMITS_CARDS]; /* of the cards' graph memory; under `growing` */
static _Atomic uint32_t trims = 1;     /* graphs backed before the last trim must ask again */

void graphs_after_fork(void)
{
	growing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
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
	}
	return now;
}

/* User addresses leave the highest byte free. */
static uint64_t part_key(uint64_t exec, int card)
{
	return exec ^ ((uint64_t)(card + 1) << 56);
}

void graphs_forget(CUgraphExec exec)
{
	const uint64_t key = (uint64_t)(uintptr_t)exec;
	struct holding entry, part;

	if (!holdings_take(KIND_GRAPH, key, &entry))
		return;
	for (int card = 0; card < LIMITS_CARDS; card++)
		if (entry.other >> card & 1)
			holdings_take(KIND_GRAPH_PART, part_key(key, card), &part);
}

void graphs_remember(CUgraphExec exec, const struct graph_wants *wants)
{
	const uint64_t key = (uint64_t)(uintptr_t)exec;
	const struct holding entry = {.key = key,
				      .kind = KIND_GRAPH,
				      .card = wants->is_foreign ? CARD_FOREIGN : 0,
				      .other = wants->cards};

	graphs_forget(exec);
	if (!wants->cards && !wants->is_foreign)
		return;
	holdings_put(&entry);
	for (int card = 0; card < LIMITS_CARDS; card++) {
		const struct holding part = {.key = part_key(key, card),
					     .kind = KIND_GRAPH_PART,
					     .card = (int16_t)card,
					     .bytes = wants->bytes[card],
					     .other = (uint64_t)wants->devices[card]};

		if (wants->cards >> card & 1)
			holdings_put(&part);
	}
}

/* Gives back what no graph uses just now; all must ask again. With the lock. */
static CUresult trim(int card, CUdevice device)
{
	calls_begin();
	const CUresult result = cuda.cuDeviceGraphMemTrim(device);

	atomic_fetch_add(&trims, 1);
	follow(card, device);
	calls_end();
	return result;
}

/* Unused memory of graphs is given up before anything is refused. With the lock. */
static CUresult reserve(int card, CUdevice device, uint64_t bytes)
{
	CUresult result = account_try_reserve(card, ACCOUNT_USED, bytes);

	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		return result;
	if (cuda.cuDeviceGraphMemTrim) {
		const CUstreamCaptureMode mode = capture_exempt();

		trim(card, device);
		capture_restore(mode);
	}
	return account_reserve(card, ACCOUNT_USED, bytes);
}

/* With the lock. */
static CUresult begin_card(struct graph_growth *growth, int card, bool has_memory)
{
	struct holding part;
	CUresult result = CUDA_SUCCESS;

	if (!holdings_get(KIND_GRAPH_PART, part_key(growth->exec, card), &part))
		return CUDA_ERROR_OUT_OF_MEMORY;
	const CUdevice device = (CUdevice)part.other;

	growth->devices[card] = device;
	growth->reserved[card] = has_memory ? 0 : part.bytes;
	follow(card, device);
	if (!has_memory)
		result = reserve(card, device, growth->reserved[card]);
	growth->before[card] = follow(card, device);
	return result;
}

/* With the lock: all cards, or none. */
static CUresult begin_cards(struct graph_growth *growth, uint32_t cards, bool has_memory)
{
	CUresult result = CUDA_SUCCESS;

	growth->cards = 0;
	for (int card = 0; result == CUDA_SUCCESS && card < LIMITS_CARDS; card++) {
		if (!(cards >> card & 1))
			continue;
		result = begin_card(growth, card, has_memory);
		if (result == CUDA_SUCCESS)
			growth->cards |= 1u << card;
	}
	for (int card = 0; result != CUDA_SUCCESS && card < LIMITS_CARDS; card++)
		if (growth->cards >> card & 1)
			account_settle(card, ACCOUNT_USED, growth->reserved[card], 0);
	return result;
}

CUresult graph_begin(struct graph_growth *growth, CUgraphExec exec, CUstream stream)
{
	struct holding entry;

	growth->exec = (uint64_t)(uintptr_t)exec;
	growth->is_open = false;
	if (!holdings_get(KIND_GRAPH, growth->exec, &entry) || capture_has(stream))
		return CUDA_SUCCESS;
	if (entry.card == CARD_FOREIGN)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&growing);
	const CUresult result =
		begin_cards(growth, (uint32_t)entry.other, entry.tag == atomic_load(&trims));

	growth->is_open = result == CUDA_SUCCESS;
	if (!growth->is_open)
		pthread_mutex_unlock(&growing);
	return result;
}

static void remember_backing(uint64_t exec)
{
	holdings_lock();
	struct holding *entry = holdings_at(KIND_GRAPH, exec);

	if (entry)
		entry->tag = atomic_load(&trims);
	holdings_unlock();
}

/* What the card's graph memory has grown by. */
static uint64_t graph_grown(const struct graph_growth *growth, int card)
{
	const uint64_t now =
		graph_number(growth->devices[card], CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
	const uint64_t before = growth->before[card];

	return now > before ? now - before : 0;
}

/* With the lock. */
static void end_card(const struct graph_growth *growth, int card)
{
	const uint64_t grown = graph_grown(growth, card);

	account_settle(card, ACCOUNT_USED, growth->reserved[card], grown);
	charged[card] += grown;
	follow(card, growth->devices[card]);
}

void graph_end(struct graph_growth *growth, CUresult result)
{
	if (!growth->is_open)
		return;
	for (int card = 0; card < LIMITS_CARDS; card++)
		if (growth->cards >> card & 1)
			end_card(growth, card);
	if (result == CUDA_SUCCESS)
		remember_backing(growth->exec);
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
