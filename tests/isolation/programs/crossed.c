/*
 * One of two jobs that meet over two cards: a kernel on the first, and while it is there one on the
 * second, as a collective has it, whose kernels end only once all of them run. Prints the result and
 * the longest time in simulated nanoseconds for which a launch on the second card did not return.
 *
 *	crossed FIRST_CARD UNIT_NS ROUNDS TOGETHER
 */
#include "place.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Between rounds all credit is back; then both jobs have something on their first card. */
enum { ROUND_NS = 2000000000, AHEAD_NS = 5000000 };

int main(int count, char **words)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 5 || !driver)
		return 2;
	uint64_t (*now_ns)(void) = (uint64_t(*)(void))dlsym(driver, "gpusim_now_ns");
	void (*rest)(uint64_t) = (void (*)(uint64_t))dlsym(driver, "gpusim_sleep_ns");
	int (*step)(unsigned) = (int (*)(unsigned))dlsym(driver, "gpusim_step_together");
	const int first = atoi(words[1]);
	const uint64_t unit_ns = strtoull(words[2], NULL, 10);
	struct place places[2];
	uint64_t longest_ns = 0;
	CUresult result = CALL(cuInit, 0);

	for (int i = 0; !result && i < 2; i++)
		result = make_place(&places[i], i ? 1 - first : first, unit_ns);
	if (result || step((unsigned)atoi(words[4])))
		return 2;
	for (int i = atoi(words[3]); !result && i > 0; i--) {
		rest(ROUND_NS);
		result = launch(&places[0]);
		rest(AHEAD_NS);
		const uint64_t begin_ns = now_ns();

		if (!result)
			result = launch(&places[1]);
		if (now_ns() - begin_ns > longest_ns)
			longest_ns = now_ns() - begin_ns;
		for (int each = 0; !result && each < 2; each++)
			result = CALL(cuStreamSynchronize, places[each].stream);
	}
	printf("%d %" PRIu64 "\n", result, longest_ns);
	return 0;
}
