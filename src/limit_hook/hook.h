/* The parts of gpu-limit-hook. Each either does its work or ends the program with a reason. */
#pragma once

#include "slice/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { HOOK_PATH_BYTES = 4096 };
enum { LIMIT_SET = 1, LIMIT_EXCEEDED = 2 };

/* One line on stderr, which the container runtime hands on, and exit status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void refuse(const char *format, ...);

/* `tree`, or where that is NULL /sys/fs/cgroup, which then has to be cgroup v2. */
const char *cgroup_tree(const char *tree);
/*
 * The cgroup of `process`, a directory below /proc, as a directory below the tree; where that is
 * NULL of the container whose OCI state is on stdin.
 */
void container_cgroup(const char *tree, const char *process, char leaf[HOOK_PATH_BYTES]);
/* Whether processes run in that cgroup or below it. */
bool container_runs(const char *leaf);

/*
 * Sets each card's hard limit of the cgroup, and no soft limit, through the libnvidia-ml below
 * `driver_root`, and reads it back. A card without a cap is left as it is; a slice of a whole card
 * has no limit but the card. With `is_kept` what holds already is not set again. Which of LIMIT_
 * is true of any card: LIMIT_EXCEEDED that more is in use, where one driver has set the limit all
 * the same, and another has left the one that was there.
 */
unsigned driver_limit(const char *driver_root, const char *leaf, const struct limits *limits,
		      bool is_kept);
/*
 * Sets a limit of each card on an empty cgroup of our own, reads it back and takes it away. The
 * report says of each card which backend counts there, dmem or misc, or why it cannot be limited.
 */
void driver_probe(const char *driver_root, const char *tree, const char *leaf, FILE *report);
