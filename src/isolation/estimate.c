/* A small table that may forget: who is pushed out is measured again. */
#include "estimate.h"

#include <string.h>

enum { PLACES = 2048, WEIGHT = 4 };

struct place {
	uint64_t what;
	uint64_t duration_ns;
};

static struct place places[PLACES];

static struct place *place_of(uint64_t what)
{
	return &places[(what * 0x9E3779B97F4A7C15ull) >> 53];
}

uint64_t estimate_of(uint64_t what, bool *is_known)
{
	const struct place *place = place_of(what);

	*is_known = what && place->what == what;
	return *is_known ? place->duration_ns : ESTIMATE_UNKNOWN_NS;
}

/* A moving average: kernels of one name may work on different amounts. */
void estimate_learn(uint64_t what, uint64_t measured_ns)
{
	struct place *place = place_of(what);

	if (place->what != what)
		*place = (struct place){.what = what, .duration_ns = measured_ns};
	else
		place->duration_ns = (place->duration_ns * (WEIGHT - 1) + measured_ns) / WEIGHT;
	if (!place->duration_ns)
		place->duration_ns = 1;
}

void estimate_forget_all(void)
{
	memset(places, 0, sizeof(places));
}
