/* Images of code that are loaded, and how much of a card they take; see overhead/images.c. */
#pragma once

#include "driver/api.h"

#include <stdint.h>

/* All may be called from any thread. */

/* The most that its code takes. A cubin, a fat binary or PTX as the driver takes it; 0: unknown. */
uint64_t image_bytes(const void *image);
uint64_t image_file_bytes(const char *path);

/* A module, which goes with its context, or a library, which is in all of them (NULL). */
void images_loaded(const void *handle, uint64_t bytes, CUcontext home);
void images_unloaded(const void *handle);
void images_forget_context(CUcontext context);

/* Bytes of code on a card, where this process has so many contexts. */
uint64_t images_code(int card, unsigned contexts);

void images_after_fork(void);
