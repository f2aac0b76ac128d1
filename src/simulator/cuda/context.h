/* Contexts: made, retained, stacked; what each of them costs in memory. */
#ifndef GPUSIM_CONTEXT_H
#define GPUSIM_CONTEXT_H

#include "driver.h"

struct stream;

enum { CONTEXT_MAGIC = 0x43545830 };

struct context {
	uint32_t magic;
	bool is_primary;
	bool is_alive;       /* a handle outlives its context, so that its use is an error */
	unsigned references; /* of a primary context */
	unsigned flags;
	unsigned api_version;
	uint64_t id;
	uint64_t cost_bytes;
	struct device *device;
	struct context *home;          /* of a green one: the primary, where its objects live */
	struct stream *default_stream; /* the legacy one; of a green one its own */
	struct stream *streams;        /* all others */
	size_t limits[16];             /* by CUlimit */
};

/* As driver_enter_bare, with the calling thread's current context; that of a card that is there. */
CUresult driver_enter(struct context **context);
CUresult driver_enter_launch(struct context **context); /* takes the host some time */

/* All under the process's lock. */

/* The calling thread's, alive; else CUDA_ERROR_INVALID_CONTEXT. The primary for a green one. */
CUresult context_current(struct context **context);
/* The calling thread's green context, if what is current is one of this context; else NULL. */
struct context *context_green(const struct context *context);
/* A handle of the program; NULL when it is none, or is destroyed. */
struct context *context_of(CUcontext handle);

CUresult context_open(struct device *device, unsigned flags, struct context **context);
/* A device's primary context: one handle for ever, alive while it is retained. */
struct context *context_primary(struct device *device);
/* One user of it more or less; the first makes it alive, the last ends it. */
CUresult context_retain_primary(struct device *device, struct context **primary);
void context_release_primary(struct context *primary);
/* Makes it alive; CUDA_ERROR_OUT_OF_MEMORY when the card has no room for its cost. */
CUresult context_revive(struct context *context);
/* At start-up: what ends the green contexts of a context that ends. */
void context_at_close(void (*call)(const struct context *primary));

/* What one context of the device takes, in bytes. */
uint64_t context_cost_bytes(const struct device *device);

/* The calling thread's stack of current contexts. */
struct context *stack_top(void);
bool stack_push(struct context *context);
struct context *stack_pop(void);
void stack_set_top(struct context *context);

#endif
