#include "user_object.h"

#include <stdlib.h>

struct user_object {
	uint32_t magic;
	unsigned references;
	CUhostFn destroy;
	void *pointer;
	struct user_object *next; /* among the doomed */
};

/* Destroyed without the process's lock: the program's function may wait for anything. */
static struct user_object *_Atomic doomed;

static struct user_object *object_of(CUuserObject handle)
{
	struct user_object *object = (struct user_object *)(void *)handle;

	return object && object->magic == USER_OBJECT_MAGIC ? object : NULL;
}

static void release(struct user_object *object, unsigned count)
{
	object->references -= count;
	if (object->references)
		return;
	object->magic = 0;
	object->next = doomed;
	doomed = object;
}

static void bury(void)
{
	struct user_object *object;

	if (!doomed)
		return;
	driver_lock();
	object = doomed;
	doomed = NULL;
	driver_unlock();
	while (object) {
		struct user_object *next = object->next;

		object->destroy(object->pointer);
		free(object);
		object = next;
	}
}

__attribute__((constructor)) static void start(void)
{
	driver_at_leave(bury);
}

static bool hold(struct user_references **references, struct user_object *object, unsigned count)
{
	struct user_references *held = *references;

	while (held && held->object != object)
		held = held->next;
	if (!held) {
		held = calloc(1, sizeof(*held));
		if (!held)
			return false;
		held->object = object;
		held->next = *references;
		*references = held;
	}
	held->count += count;
	return true;
}

bool user_references_copy(struct user_references **to, const struct user_references *from)
{
	for (; from; from = from->next) {
		if (!hold(to, from->object, from->count))
			return false;
		from->object->references += from->count;
	}
	return true;
}

void user_references_drop(struct user_references **references)
{
	while (*references) {
		struct user_references *held = *references;

		*references = held->next;
		release(held->object, held->count);
		free(held);
	}
}

CUresult user_references_add(struct user_references **references, CUuserObject handle,
			     unsigned count, bool is_moved)
{
	struct user_object *object = object_of(handle);

	if (!object || !count)
		return CUDA_ERROR_INVALID_VALUE;
	if (!hold(references, object, count))
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* Moved: the caller's references are the graph's from now on. */
	if (!is_moved)
		object->references += count;
	return CUDA_SUCCESS;
}

CUresult user_references_remove(struct user_references **references, CUuserObject handle,
				unsigned count)
{
	while (*references && (*references)->object != object_of(handle))
		references = &(*references)->next;
	struct user_references *held = *references;
	if (!held || !count || count > held->count)
		return CUDA_ERROR_INVALID_VALUE;
	held->count -= count;
	release(held->object, count);
	if (!held->count) {
		*references = held->next;
		free(held);
	}
	return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject *handle, void *pointer, CUhostFn destroy,
			    unsigned int count, unsigned int flags)
{
	struct user_object *object;
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !destroy || !count || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	object = calloc(1, sizeof(*object));
	if (!object)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*object = (struct user_object){.magic = USER_OBJECT_MAGIC,
				       .references = count,
				       .destroy = destroy,
				       .pointer = pointer};
	*handle = (CUuserObject)(void *)object;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!object_of(handle) || !count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	object_of(handle)->references += count;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!object_of(handle) || !count || count > object_of(handle)->references)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	release(object_of(handle), count);
	return driver_leave(CUDA_SUCCESS);
}
