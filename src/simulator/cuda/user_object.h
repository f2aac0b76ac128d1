/* Objects of the program that graphs keep: the last who lets go has them destroyed. */
#ifndef GPUSIM_USER_OBJECT_H
#define GPUSIM_USER_OBJECT_H

#include "driver.h"

enum { USER_OBJECT_MAGIC = 0x55534f30 };

/* References of one graph, or of one executable graph. */
struct user_references {
	struct user_object *object;
	unsigned count;
	struct user_references *next;
};

/* Under the process's lock; what nobody holds any longer is destroyed after it (driver_at_leave).
 */
bool user_references_copy(struct user_references **to, const struct user_references *from);
void user_references_drop(struct user_references **references);
/* CUDA_ERROR_INVALID_VALUE where the handle is none, or fewer references are held. */
CUresult user_references_add(struct user_references **references, CUuserObject handle,
			     unsigned count, bool is_moved);
CUresult user_references_remove(struct user_references **references, CUuserObject handle,
				unsigned count);

#endif
