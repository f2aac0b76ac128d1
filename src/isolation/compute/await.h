/* What a launch waits for, and the meters' lock; see compute/await.c. */
#pragma once

#include "compute/meter_state.h"

/* The lock of all meters of this process. */
void await_lock(void);
void await_unlock(void);
void await_after_fork(void);

/*
 * With the lock, which is given up while the thread sleeps; NULL when the context ended meanwhile.
 * Until there is credit, and then until the launch can be measured by itself, if that is due.
 */
struct meter *await_credit(struct meter *meter, struct meter_launch *launch);
struct meter *await_measurement(struct meter *meter, struct meter_launch *launch);
