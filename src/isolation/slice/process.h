/* The identity of this process, and whether another one is still alive. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A process image: the pid alone comes back after a while, the start time tells
 * two holders of a pid apart, and the place of the stack tells the image before
 * an exec from the one after.
 */
struct process_name {
	int32_t pid; /* in its own pid namespace */
	uint32_t reserved;
	uint64_t start_ticks;   /* field 22 of /proc/<pid>/stat; 0: unknown */
	uint64_t stack_start;   /* field 28; 0: unknown */
	uint64_t pid_namespace; /* inode of /proc/self/ns/pid; 0: unknown */
};

/* This process, asked of the kernel once. Any thread. */
const struct process_name *process_self(void);

/* False only when that image is certainly gone; a doubt means alive. */
bool process_is_alive(const struct process_name *name);

/* Is the pid namespace the machine's first one, so that pids here are the driver's? */
bool process_sees_host_pids(void);

/*
 * Has `function` called in every forked child, at once, while no other thread is there. For
 * locks: asked for before the first of them is taken. Asking again does nothing. Any thread.
 */
void process_in_children(void (*function)(void));

/* True once in a child that was forked, by whatever means, since the last call. */
bool process_was_forked(void);

/*
 * A lock that a forked child has free, since another thread of the parent may have held it:
 * process_in_children(name_in_child) before it is taken.
 */
#define LOCK_OF_PROCESS(name)                                                                      \
	static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                   \
	static void name##_in_child(void)                                                          \
	{                                                                                          \
		name = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;                                 \
	}
