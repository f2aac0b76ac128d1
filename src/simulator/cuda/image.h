/*
 * What a program gives to be loaded: PTX, a cubin, or a fat binary of either.
 * No code is run, but the image is read: a kernel that is not in it cannot be
 * had, and what is no image does not load. Compressed parts of fat binaries are
 * not unpacked; their kernels are not found.
 */
#ifndef GPUSIM_IMAGE_H
#define GPUSIM_IMAGE_H

#include "cuda_api.h"

#include <stdbool.h>

struct image_parameter {
	size_t offset, bytes;
};

struct image_kernel {
	char *name;
	size_t count;
	struct image_parameter *parameters;
};

/* Or a texture or surface reference of PTX, which has no bytes. */
struct image_variable {
	char *name;
	size_t bytes;
};

struct image {
	unsigned references;
	size_t count;
	struct image_kernel *kernels; /* no pointers into it while it grows */
	size_t variables_count;
	struct image_variable *variables;
};

/* image_open.c: with one reference, for image_drop. An error as cuModuleLoadData's. */
CUresult image_open(const void *bytes, struct image **image);
CUresult image_open_file(const char *path, struct image **image);
struct image *image_keep(struct image *image);
void image_drop(struct image *image);

/* NULL when it is not in it. */
const struct image_kernel *image_find(const struct image *image, const char *name);
const struct image_variable *image_variable(const struct image *image, const char *name);

/* For the readers below: false where memory is short. A name that is there already is that one. */
struct image_kernel *image_add(struct image *image, const char *name, size_t length);
bool image_add_parameter(struct image_kernel *kernel, size_t place, struct image_parameter what);
bool image_add_variable(struct image *image, const char *name, size_t length, size_t bytes);

/* image_ptx.c, image_cubin.c */
CUresult image_read_ptx(struct image *image, const char *text);
CUresult image_read_cubin(struct image *image, const unsigned char *bytes);

#endif
