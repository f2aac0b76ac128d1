/*
 * A slice that lies on its own page, on a clock that moves in steps: every 20 ms it says anew, for
 * 50 ms, what it says.
 *
 *	forger PAGE SECONDS holds|wants TOGETHER
 *
 * The clock is shared with as many programs as TOGETHER says.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVERY_NS 20000000u
#define SAID_NS 50000000u

/* As docs and src/isolation/books/activity.h have it. */
struct page {
	uint64_t magic, earlier[2];
	uint32_t version, takes_leases;
	uint64_t want_until_ns, hold_until_ns, quiet;
	int64_t key;
	uint64_t is_told, out_until_ns;
};

int main(int count, char **words)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	const int file = count > 4 ? open(words[1], O_WRONLY) : -1;

	if (!driver || file < 0 ||
	    ((int (*)(unsigned))dlsym(driver, "gpusim_step_together"))((unsigned)atoi(words[4])))
		return 2;
	uint64_t (*now_ns)(void) = (uint64_t(*)(void))dlsym(driver, "gpusim_now_ns");
	void (*sleep_ns)(uint64_t) = (void (*)(uint64_t))dlsym(driver, "gpusim_sleep_ns");
	const uint64_t end_ns = now_ns() + strtoull(words[2], NULL, 10) * 1000000000u;
	const int is_holder = !strcmp(words[3], "holds");

	while (now_ns() < end_ns) {
		const uint64_t until_ns = now_ns() + SAID_NS;
		const struct page page = {.magic = 0x3254434153555047ull,
					  .version = 2,
					  .takes_leases = 1,
					  .want_until_ns = until_ns,
					  .hold_until_ns = is_holder ? until_ns : 0,
					  .key = INT64_MAX,
					  .is_told = 1,
					  .out_until_ns = is_holder ? until_ns : 0};

		if (pwrite(file, &page, sizeof(page), 0) != sizeof(page))
			return 3;
		sleep_ns(EVERY_NS);
	}
	((void (*)(void))dlsym(driver, "gpusim_step_apart"))();
	return 0;
}
