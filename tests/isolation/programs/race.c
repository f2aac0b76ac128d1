/*
 * Processes that race for the last bytes, round after round. In each round all
 * ask at once for `bytes`, of which only some fit; then all free.
 *
 *	race <processes> <rounds> <bytes>   prints "<least> <most>" successes a round
 */
#include "call.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct board {
	pthread_barrier_t barrier;
	atomic_int won;
	int least, most;
};

static int compete(struct board *board, int number, int rounds, size_t bytes)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUcontext context;

	if (!driver || CALL(cuInit, 0) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
	    CALL(cuCtxSetCurrent, context))
		return 1;
	for (int round = 0; round < rounds; round++) {
		CUdeviceptr pointer = 0;

		pthread_barrier_wait(&board->barrier);
		if (CALL(cuMemAlloc_v2, &pointer, bytes) == CUDA_SUCCESS)
			atomic_fetch_add(&board->won, 1);
		pthread_barrier_wait(&board->barrier);
		if (number == 0) {
			const int won = atomic_exchange(&board->won, 0);

			board->least = won < board->least ? won : board->least;
			board->most = won > board->most ? won : board->most;
		}
		if (pointer && CALL(cuMemFree_v2, pointer))
			return 2;
	}
	/* Nobody leaves early: a context that ends would make room. */
	pthread_barrier_wait(&board->barrier);
	return 0;
}

int main(int count, char **words)
{
	pthread_barrierattr_t shared;
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status, failed = 0;

	if (count != 4 || board == MAP_FAILED)
		return 2;
	const int processes = atoi(words[1]);

	board->least = processes;
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&board->barrier, &shared, (unsigned)processes);
	for (int i = 0; i < processes; i++)
		if (fork() == 0)
			_exit(compete(board, i, atoi(words[2]), strtoull(words[3], NULL, 10)));
	while (wait(&status) > 0)
		failed += status != 0;
	printf("%d %d\n", board->least, board->most);
	return failed ? 1 : 0;
}
