#include "image.h"

#include <stdlib.h>
#include <string.h>

struct image *image_keep(struct image *image)
{
	image->references++;
	return image;
}

void image_drop(struct image *image)
{
	if (--image->references)
		return;
	for (size_t i = 0; i < image->count; i++) {
		free(image->kernels[i].name);
		free(image->kernels[i].parameters);
	}
	for (size_t i = 0; i < image->variables_count; i++)
		free(image->variables[i].name);
	free(image->kernels);
	free(image->variables);
	free(image);
}

const struct image_kernel *image_find(const struct image *image, const char *name)
{
	for (size_t i = 0; i < image->count; i++) {
		if (strcmp(image->kernels[i].name, name) == 0)
			return &image->kernels[i];
	}
	return NULL;
}

const struct image_variable *image_variable(const struct image *image, const char *name)
{
	for (size_t i = 0; i < image->variables_count; i++) {
		if (strcmp(image->variables[i].name, name) == 0)
			return &image->variables[i];
	}
	return NULL;
}

struct image_kernel *image_add(struct image *image, const char *name, size_t length)
{
	struct image_kernel *grown;

	for (size_t i = 0; i < image->count; i++) {
		if (strlen(image->kernels[i].name) == length &&
		    memcmp(image->kernels[i].name, name, length) == 0)
			return &image->kernels[i];
	}
	grown = realloc(image->kernels, (image->count + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	image->kernels = grown;
	grown[image->count] = (struct image_kernel){.name = strndup(name, length)};
	return grown[image->count].name ? &grown[image->count++] : NULL;
}

bool image_add_parameter(struct image_kernel *kernel, size_t place, struct image_parameter what)
{
	if (place >= kernel->count) {
		struct image_parameter *grown =
			realloc(kernel->parameters, (place + 1) * sizeof(*grown));

		if (!grown)
			return false;
		memset(grown + kernel->count, 0, (place + 1 - kernel->count) * sizeof(*grown));
		kernel->parameters = grown;
		kernel->count = place + 1;
	}
	kernel->parameters[place] = what;
	return true;
}

bool image_add_variable(struct image *image, const char *name, size_t length, size_t bytes)
{
	struct image_variable *grown =
		realloc(image->variables, (image->variables_count + 1) * sizeof(*grown));

	if (!grown)
		return false;
	image->variables = grown;
	grown[image->variables_count] = (struct image_variable){strndup(name, length), bytes};
	return grown[image->variables_count++].name != NULL;
}
