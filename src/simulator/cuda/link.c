/*
 * The linker: what is given to it becomes one image with all their kernels and variables.
 * That is written as PTX, as no code is made: programs only load it again.
 */
#include "context.h"
#include "image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINK_MAGIC = 0x4c4e4b30 };

struct link {
	uint32_t magic;
	char *text;
	size_t bytes;
};

static struct link *link_of(CUlinkState handle)
{
	struct link *link = (struct link *)(void *)handle;

	return link && link->magic == LINK_MAGIC ? link : NULL;
}

/* The whole text is written again with what came; false where memory is short. */
static bool write_image(struct link *link, const struct image *image)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&text, &bytes);

	if (!file)
		return false;
	(void)fputs(link->text ? link->text : ".version 7.0\n.target sm_50\n.address_size 64\n",
		    file);
	for (size_t i = 0; i < image->count; i++) {
		const struct image_kernel *kernel = &image->kernels[i];

		(void)fprintf(file, ".visible .entry %s(", kernel->name);
		for (size_t j = 0; j < kernel->count; j++) {
			size_t offset = kernel->parameters[j].offset;

			(void)fprintf(file, "%s.param .align %zu .b8 p%zu[%zu]", j ? ", " : "",
				      offset ? offset & -offset : 16, j,
				      kernel->parameters[j].bytes);
		}
		(void)fputs(") { ret; }\n", file);
	}
	for (size_t i = 0; i < image->variables_count; i++) {
		const struct image_variable *variable = &image->variables[i];

		if (variable->bytes)
			(void)fprintf(file, ".visible .global .align 16 .b8 %s[%zu];\n",
				      variable->name, variable->bytes);
	}
	if (fclose(file) != 0)
		return false;
	free(link->text);
	link->text = text;
	link->bytes = bytes;
	return true;
}

/* Takes the image's reference. */
static CUresult add(struct link *link, struct image *image)
{
	bool is_written = write_image(link, image);

	image_drop(image);
	return is_written ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values,
			 CUlinkState *handle)
{
	struct context *context;
	CUresult result = driver_enter(&context);
	struct link *link;

	(void)count;
	(void)options;
	(void)values;
	if (result != CUDA_SUCCESS)
		return result;
	link = handle ? calloc(1, sizeof(*link)) : NULL;
	if (!link)
		return driver_leave(handle ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
	link->magic = LINK_MAGIC;
	*handle = (CUlinkState)(void *)link;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void *data, size_t bytes,
			  const char *name, unsigned int count, CUjit_option *options,
			  void **values)
{
	CUresult result = driver_enter_bare();
	struct image *image;
	char *copy;

	(void)type;
	(void)name;
	(void)count;
	(void)options;
	(void)values;
	if (result != CUDA_SUCCESS)
		return result;
	if (!link_of(handle) || !data || !bytes)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	copy = calloc(1, bytes + 1); /* a text need not end with a zero */
	if (!copy)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(copy, data, bytes);
	result = image_open(copy, &image);
	free(copy);
	return driver_leave(result == CUDA_SUCCESS ? add(link_of(handle), image) : result);
}

CUresult cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char *path,
			  unsigned int count, CUjit_option *options, void **values)
{
	CUresult result = driver_enter_bare();
	struct image *image;

	(void)type;
	(void)count;
	(void)options;
	(void)values;
	if (result != CUDA_SUCCESS)
		return result;
	if (!link_of(handle) || !path)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = image_open_file(path, &image);
	return driver_leave(result == CUDA_SUCCESS ? add(link_of(handle), image) : result);
}

/* Belongs to the linker, until it is destroyed. Its zero at the end counts. */
CUresult cuLinkComplete(CUlinkState handle, void **image, size_t *bytes)
{
	CUresult result = driver_enter_bare();

	if (result != CUDA_SUCCESS)
		return result;
	if (!link_of(handle) || !image)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!link_of(handle)->text)
		return driver_leave(CUDA_ERROR_INVALID_IMAGE);
	*image = link_of(handle)->text;
	if (bytes)
		*bytes = link_of(handle)->bytes + 1;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLinkDestroy(CUlinkState handle)
{
	CUresult result = driver_enter_bare();
	struct link *link;

	if (result != CUDA_SUCCESS)
		return result;
	link = link_of(handle);
	if (!link)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	link->magic = 0;
	free(link->text);
	free(link);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
	return cuLinkCreate_v2(count, options, values, state);
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t bytes,
		       const char *name, unsigned int count, CUjit_option *options, void **values)
{
	return cuLinkAddData_v2(state, type, data, bytes, name, count, options, values);
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
		       CUjit_option *options, void **values)
{
	return cuLinkAddFile_v2(state, type, path, count, options, values);
}
