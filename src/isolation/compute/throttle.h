/* Where a launch waits; see compute/throttle.c. With the meters' lock. */
#pragma once

#include "compute/meter_state.h"

/*
 * Returns when the launch may go; what is out is measured meanwhile. Gives the lock up; NULL when
 * the context ended.
 */
struct meter *throttle_await(struct meter *meter, struct meter_launch *launch);
