/* Images of code that are loaded, and how much of a card they can take; see unasked/images.c. */
#pragma once

#include "driver/api.h"

#include <stdint.h>

/* All may be called from any thread. */

/* A cubin, a fat binary or PTX as the driver takes it, in memory or in a file; 0: unknown. */
uint64_t image_bytes(const void *image);
uint64_t image_file_bytes(const char *path);

/* A module, which goes with its context, or a library, which goes with none (NULL). */
void images_loaded(const void *handle, uint64_t bytes, CUcontext home);
void images_unloaded(const void *handle);
void images_forget_context(CUcontext context);

/* Bytes of code that all that are loaded can have on a card. */
uint64_t images_most_code(void);

void images_after_fork(void);
