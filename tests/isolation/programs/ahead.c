/*
 * Launches of one thread on default streams, of kernels that are known: two, some rest on the
 * host, and again. Prints the result.
 *
 *	ahead cards UNIT_NS TIMES	on card 0, and on card 1
 *	ahead waited UNIT_NS TIMES	on card 0, and another thread waits for them
 *	ahead beside UNIT_NS TIMES	on card 0, and another thread one in another context
 *	ahead shared UNIT_NS TIMES	on card 0, another thread one more, this one eight more
 *	ahead kinds UNIT_NS TIMES	on card 0, and eight that take ten times as long
 *	ahead grows UNIT_NS TIMES	on card 0, one of another kind that once takes ten times as
 *					long, and waits for them
 */
#include "place.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEARNING = 600, REST_NS = 60000 };

static struct place places[2];

static CUresult launch_two(const struct place *place)
{
	CUresult result = CALL(cuCtxSetCurrent, place->context);

	if (!result)
		result = launch(place);
	return result ? result : launch(place);
}

static void *await_all(void *result)
{
	*(CUresult *)result = CALL(cuCtxSetCurrent, places[0].context);
	if (!*(CUresult *)result)
		*(CUresult *)result = CALL(cuCtxSynchronize);
	return NULL;
}

static void *launch_one(void *result)
{
	*(CUresult *)result = CALL(cuCtxSetCurrent, places[0].context);
	if (!*(CUresult *)result)
		*(CUresult *)result = launch(&places[0]);
	return NULL;
}

static void *launch_beside(void *result)
{
	*(CUresult *)result = CALL(cuCtxSetCurrent, places[1].context);
	if (!*(CUresult *)result)
		*(CUresult *)result = launch(&places[1]);
	if (!*(CUresult *)result)
		*(CUresult *)result = CALL(cuCtxSynchronize);
	return NULL;
}

static CUresult elsewhere(void *(*work)(void *))
{
	CUresult result = CUDA_SUCCESS;
	pthread_t thread;

	if (pthread_create(&thread, NULL, work, &result))
		return CUDA_ERROR_UNKNOWN;
	pthread_join(thread, NULL);
	return result;
}

static CUresult share(void)
{
	CUresult result = elsewhere(launch_one);

	for (int i = 0; !result && i < 4; i++)
		result = launch_two(&places[0]);
	return result;
}

static CUresult launch_others(int count, uint64_t times)
{
	uint64_t duration_ns = times * places[0].duration_ns;
	void *parameters[] = {&duration_ns};
	CUresult result = CUDA_SUCCESS;

	for (int i = 0; !result && i < count; i++)
		result = CALL(cuLaunchKernel, places[0].spin, 16, 1, 1, 1, 1, 1, 0, NULL,
			      parameters, NULL);
	return result;
}

int main(int count, char **words)
{
	CUresult result = CUDA_SUCCESS;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (count != 4 || !driver || CALL(cuInit, 0))
		return 2;
	const int is_beside = !strcmp(words[1], "beside"), grows = !strcmp(words[1], "grows");
	const int cards = strcmp(words[1], "cards") ? 1 : 2, times = atoi(words[3]);

	void (*rest)(uint64_t) = (void (*)(uint64_t))dlsym(driver, "gpusim_sleep_ns");
	for (int i = 0; i < cards; i++) {
		if (make_place(&places[i], i, strtoull(words[2], NULL, 10)))
			return 2;
		places[i].stream = NULL;
		/* One function for both, as a CUkernel is; the simulated driver takes it. */
		places[i].spin = places[0].spin;
	}
	if (is_beside && make_place(&places[1], 0, strtoull(words[2], NULL, 10)))
		return 2;
	for (int i = 0; !result && i < LEARNING + times; i++) {
		for (int card = 0; !result && card < cards; card++)
			result = launch_two(&places[card]);
		if (!result && grows)
			result = launch_others(1, i < LEARNING ? 1 : 10);
		if (!result && grows)
			result = CALL(cuCtxSynchronize);
		else if (!result && i < LEARNING)
			result = elsewhere(await_all);
		else if (!result && !strcmp(words[1], "shared"))
			result = share();
		else if (!result && !strcmp(words[1], "kinds"))
			result = launch_others(8, 10);
		else if (!result && is_beside)
			result = elsewhere(launch_beside);
		rest(REST_NS);
		if (!result && !strcmp(words[1], "waited"))
			result = elsewhere(await_all);
	}
	if (!result)
		result = elsewhere(await_all);
	printf("%d\n", result);
	return 0;
}
