/* The limits file, which the agent writes and the library reads at each start. */
#include "slice/limits.h"

#include "harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char reason[64];
	struct limits limits;

	if (limits_parse((const char *)data, size, &limits, reason, sizeof(reason)) &&
	    limits.card_count > LIMITS_CARDS)
		abort();
	return 0;
}
