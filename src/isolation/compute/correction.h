/* Charges looked at again when the neighbours have told all; see compute/correction.c. With the
 * meter's lock. */
#pragma once

#include "compute/meter_state.h"

#include <stdint.h>

/* `part_ns` was charged for [from, to); `is_sure`: that is what its kernels take, as far as is
 * known. */
void correction_note(struct meter *meter, uint64_t from_ns, uint64_t to_ns, uint64_t part_ns,
		     bool is_sure);

/* Now and then: corrects what was charged a while ago. */
void correction_run(struct meter *meter, uint64_t now_ns);
