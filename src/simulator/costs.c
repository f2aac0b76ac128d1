#include "costs.h"

#include <stdlib.h>

/*
 * The one place that says whether a simulated card costs what a card costs by itself, unless
 * GPU_SIMULATOR_CARD_LIKE=0 asks for none of it.
 */
enum { IS_CARD_LIKE = 1, SLOW_EACH = 8 };

static const struct {
	const char *variable;
	uint64_t card;
} costs[COSTS] = {
#define COST(name, variable, card) {variable, card},
#include "costs.def"
#undef COST
};

/* Programs that change their environment while threads run are on their own, here as elsewhere. */
static bool number(const char *variable, uint64_t *value)
{
	const char *text = getenv(variable); // NOLINT(concurrency-mt-unsafe)
	char *end;

	if (!text || !*text)
		return false;
	*value = strtoull(text, &end, 10);
	return *end == '\0';
}

static bool is_card_like(void)
{
	uint64_t asked = IS_CARD_LIKE;

	return number("GPU_SIMULATOR_CARD_LIKE", &asked) ? asked : IS_CARD_LIKE;
}

uint64_t gpusim_cost(enum gpusim_cost cost, bool *is_said)
{
	uint64_t value = 0;
	const bool is_set = number(costs[cost].variable, &value);

	if (is_said)
		*is_said = is_set || is_card_like();
	if (is_set)
		return value;
	return is_card_like() ? costs[cost].card : 0;
}

uint64_t gpusim_cost_at_times(enum gpusim_cost cost, uint64_t calls)
{
	uint64_t ignored;

	if (!number(costs[cost].variable, &ignored) && calls % SLOW_EACH != 0)
		return 0;
	return gpusim_cost(cost, NULL);
}
