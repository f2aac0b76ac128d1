/*
 * What the first launch of a function brings to the card of its stream, which
 * need not be the one whose context is current.
 */
#include "unasked/overhead.h"

#include "books/account.h"
#include "books/calls.h"
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

void overhead_open_launch(struct overhead_launch *launch)
{
	launch->is_new = false;
	launch->is_quiesced = false;
	launch->cards = 0;
}

/* From here on, and what the launch itself calls passes our hooks. */
static void stop_others(struct overhead_launch *launch)
{
	if (!calls_quiesce_others())
		return;
	launch->is_quiesced = true;
	driver_go_inside();
}

/* In the stream's context. */
static void begin_here(struct overhead_launch *launch, struct context_scope here)
{
	int card;

	if (card_current(&card) != CUDA_SUCCESS || card < 0 || launch->cards >> card & 1)
		return;
	if (!launch->is_quiesced && !nvml_knows_pid())
		stop_others(launch);
	launch->cards |= 1u << card;
	launch->places[card] = here;
	if (launch->is_quiesced)
		card_usage_read(card, &launch->before[card]);
}

void overhead_begin_part(struct overhead_launch *launch, const void *what, CUstream stream)
{
	if (launched_has(name_of(what, stream)) || capture_has(stream))
		return;
	const CUstreamCaptureMode mode = capture_exempt();
	const struct context_scope scope = scope_stream(stream);

	launch->is_new = true;
	overhead_adopt_current();
	begin_here(launch, scope);
	scope_end(scope);
	capture_restore(mode);
}

int overhead_quiesced_card(const struct overhead_launch *launch)
{
	return launch->is_quiesced && launch->cards ? __builtin_ctz(launch->cards) : CARD_FOREIGN;
}

static void measure(struct overhead_launch *launch, int card, uint64_t counted)
{
	struct context_scope *place = &launch->places[card];

	scope_again(place);
	overhead_add_change(card, &launch->before[card], counted);
	scope_end(*place);
}

void overhead_close_launch(struct overhead_launch *launch, uint64_t counted)
{
	if (!launch->is_new)
		return;
	const CUstreamCaptureMode mode = capture_exempt();

	for (int card = 0; launch->is_quiesced && card < LIMITS_CARDS; card++)
		if (launch->cards >> card & 1)
			measure(launch, card, counted);
	if (launch->is_quiesced) {
		driver_come_back();
		calls_resume_others();
	} else {
		overhead_stale_urgently(launch->cards);
	}
	capture_restore(mode);
}

void overhead_end_part(const void *what, CUstream stream)
{
	launched_add(name_of(what, stream));
}

void overhead_begin_launch(struct overhead_launch *launch, const void *what, CUstream stream)
{
	overhead_open_launch(launch);
	overhead_begin_part(launch, what, stream);
}

void overhead_end_launch(struct overhead_launch *launch, const void *what, CUstream stream,
			 CUresult result, uint64_t counted)
{
	if (!launch->is_new)
		return;
	overhead_close_launch(launch, counted);
	/* Not before: who launches it at the same time shall measure too. */
	if (result == CUDA_SUCCESS)
		overhead_end_part(what, stream);
}
