/*
 * The driver keeps the physical memory of all graphs of a device together and
 * maps it when a graph is uploaded or launched, not before. So an executable
 * graph is asked once for what its allocation nodes want, and that is reserved
 * around its first launch; later launches find their memory still there until
 * it is trimmed.
 */
#include "graphs.h"

#include "account.h"
#include "capture.h"
#include "cards.h"
#include "entry.h"
#include "limits.h"
#include "table.h"

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

CUresult graph_begin(struct graph_growth *growth, CUgraphExec exec, CUstream stream)
{
	struct table_entry entry;

	*growth = (struct graph_growth){.exec = (uint64_t)(uintptr_t)exec};
	if (!table_get(KIND_GRAPH, growth->exec, &entry) || capture_has(stream))
		return CUDA_SUCCESS;
	CUresult result = device_of_stream(stream, &growth->device);

	if (result != CUDA_SUCCESS)
		return result;
	growth->card = card_of_device(growth->device);
	pthread_mutex_lock(&growing);
	growth->before = follow(growth->card, growth->device);
	const uint64_t used = graph_number(growth->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
	const bool has_memory = entry.mark == atomic_load(&trims);
	const bool fits_inside = growth->before >= used && entry.bytes <= growth->before - used;

	if (!has_memory) {
		result = account_reserve(growth->card, ACCOUNT_USED, entry.bytes);
		growth->reserved = entry.bytes;
		if (result == CUDA_ERROR_OUT_OF_MEMORY && fits_inside) {
			growth->reserved = account_reserve_rest(growth->card, entry.bytes);
			result = CUDA_SUCCESS;
		}
	}
	growth->is_open = result == CUDA_SUCCESS;
	if (!growth->is_open)
		pthread_mutex_unlock(&growing);
	return result;
}

static void remember_backing(uint64_t exec)
{
	table_lock();
	struct table_entry *entry = table_at(KIND_GRAPH, exec);

	if (entry)
		entry->mark = atomic_load(&trims);
	table_unlock();
}

void graph_end(struct graph_growth *growth, CUresult result)
{
	if (!growth->is_open)
		return;
	const uint64_t now = graph_number(growth->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
	const uint64_t grown = now > growth->before ? now - growth->before : 0;

	account_settle(growth->card, ACCOUNT_USED, growth->reserved, grown);
	if (growth->card >= 0)
		charged[growth->card] += grown;
	follow(growth->card, growth->device);
	if (result == CUDA_SUCCESS)
		remember_backing(growth->exec);
	pthread_mutex_unlock(&growing);
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	struct graph_growth growth;

	ENTER(cuGraphUpload, hGraphExec, hStream);
	CUresult result = graph_begin(&growth, hGraphExec, hStream);

	if (result == CUDA_SUCCESS) {
		result = cuda.cuGraphUpload(hGraphExec, hStream);
		graph_end(&growth, result);
	}
	return result;
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	struct graph_growth growth;

	ENTER(cuGraphUpload_ptsz, hGraphExec, hStream);
	CUresult result =
		graph_begin(&growth, hGraphExec, hStream ? hStream : CU_STREAM_PER_THREAD);

	if (result == CUDA_SUCCESS) {
		result = cuda.cuGraphUpload_ptsz(hGraphExec, hStream);
		graph_end(&growth, result);
	}
	return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	ENTER(cuDeviceGraphMemTrim, device);
	pthread_mutex_lock(&growing);
	const CUresult result = cuda.cuDeviceGraphMemTrim(device);

	atomic_fetch_add(&trims, 1);
	follow(card_of_device(device), device);
	pthread_mutex_unlock(&growing);
	return result;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct table_entry entry;

	ENTER(cuGraphExecDestroy, hGraphExec);
	/* Its memory stays with the device until a trim; only the note goes. */
	table_take(KIND_GRAPH, (uint64_t)(uintptr_t)hGraphExec, &entry);
	return cuda.cuGraphExecDestroy(hGraphExec);
}
