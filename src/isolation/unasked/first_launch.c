/*
 * What the first launch of a function brings to the card of its stream, which
 * need not be the one whose context is current.
 */
#include "unasked/overhead.h"

#include "books/nvml.h"
#include "driver/cards.h"
#include "driver/stream.h"
#include "unasked/launched.h"

/*
 * A kernel of a library has one handle and its code in every context; a
 * function's handle is of one context anyhow, so with one alone it says enough.
 */
static uint64_t name_of(const void *what, CUstream stream)
{
	uint64_t name = (uint64_t)(uintptr_t)what;

	if (name && overhead_has_several_contexts())
		name ^= (uint64_t)(uintptr_t)scope_context(stream) * 0x9E3779B97F4A7C15ull;
	return name;
}

void overhead_forget_launches(void)
{
	launched_forget_all();
	overhead_stale_all();
}

void overhead_note_launch(const void *what, CUstream stream, CUresult result)
{
	const uint64_t name = name_of(what, stream);
	int card;

	if (launched_has(name) || result != CUDA_SUCCESS || !nvml_knows_pid() ||
	    capture_has(stream))
		return;
	const CUstreamCaptureMode mode = capture_exempt();
	const struct context_scope scope = scope_stream(stream);

	overhead_adopt_current();
	if (card_current(&card) == CUDA_SUCCESS && card >= 0)
		overhead_stale_urgently(1u << card);
	scope_end(scope);
	capture_restore(mode);
	launched_add(name);
}
