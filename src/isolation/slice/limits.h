/* What the agent allows this container: the limits file as a value; see slice/limits.c. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LIMITS_CARDS = 32,
	LIMITS_FILE_BYTES = 64 * 1024,
	LIMITS_NAME_BYTES = 64,
	LIMITS_UUID_BYTES = 48,
};

#define LIMITS_NO_CAP UINT64_MAX

enum { CARD_FOREIGN = -1 }; /* none of its cards: the cap is 0 bytes */

enum limits_policy { POLICY_FIXED, POLICY_WORK_CONSERVING, POLICY_NATIVE };

/* As the limits file spells it. */
const char *limits_policy_name(enum limits_policy policy);

struct limits_card {
	char uuid[LIMITS_UUID_BYTES]; /* "GPU-..." or "MIG-..." as NVML spells it */
	/* These two change with a resize. */
	_Atomic uint64_t memory_bytes; /* LIMITS_NO_CAP: none */
	_Atomic uint32_t core_percent; /* 1 to 100; 100 is also "none" */
};

struct limits {
	char slice[LIMITS_NAME_BYTES];
	uint32_t revision; /* 0 at first; each resize has a greater one */
	enum limits_policy policy;
	bool is_memory_by_driver; /* NVIDIA's driver refuses too; the library does in any case */
	unsigned card_count;
	struct limits_card cards[LIMITS_CARDS];
};

/*
 * False with a reason in `reason` when the text is not exactly a limits file.
 * Nothing is guessed: a file that is not understood is not obeyed in part.
 */
bool limits_parse(const char *text, size_t length, struct limits *limits, char *reason,
		  size_t reason_bytes);
