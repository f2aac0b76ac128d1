/* A neighbour's page of activity: the neighbour's container can write anything into it. */
#include "books/activity.h"

#include "harness.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct activity page;
	const uint64_t now_ns = 1000000000000; /* of this process's own clock */

	memset(&page, 0, sizeof(page));
	memcpy(&page, data, size < sizeof(page) ? size : sizeof(page));
	for (uint64_t back = 0; back < 8; back++) {
		const uint64_t moment = now_ns - back * ACTIVITY_LONG_NS;
		const struct activity_bucket bucket = activity_bucket_at(moment, now_ns);

		(void)activity_in(&page, &bucket, now_ns, (int)back - 1);
		(void)activity_finished_ns(&page, &bucket);
	}
	(void)activity_between(&page, now_ns - ACTIVITY_LONG_NS, now_ns, now_ns);
	return 0;
}
