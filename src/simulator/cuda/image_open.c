/* An image is opened: what of it is read, and by which reader. */
#include "image.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A fat binary and its parts, as NVIDIA's compilers write them; facts of their output. */
#define FAT_MAGIC "\x50\xed\x55\xba"
#define WRAPPER_MAGIC "\xb1\x43\x62\x46"
enum { FAT_PTX = 1, FAT_CUBIN = 2 };

struct fat_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes; /* behind the header */
};

struct fat_part {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes;
	uint32_t compressed_bytes; /* 0: as it is */
};

struct fat_wrapper {
	uint32_t magic, version;
	const void *image;
};

/* The first bytes are compared as a text's: one may be shorter. */
static bool begins_with(const void *bytes, const char *magic)
{
	return strncmp(bytes, magic, 4) == 0;
}

static CUresult read_plain(struct image *image, const void *bytes)
{
	return begins_with(bytes, "\177ELF") ? image_read_cubin(image, bytes)
					     : image_read_ptx(image, bytes);
}

static CUresult read_fat(struct image *image, const unsigned char *bytes)
{
	struct fat_header header;
	struct fat_part part;
	CUresult result = CUDA_SUCCESS;

	memcpy(&header, bytes, sizeof(header));
	bytes += header.header_bytes;
	for (uint64_t at = 0; at + sizeof(part) <= header.bytes && result == CUDA_SUCCESS;
	     at += part.header_bytes + part.bytes) {
		memcpy(&part, bytes + at, sizeof(part));
		if (part.header_bytes < sizeof(part))
			return CUDA_ERROR_INVALID_IMAGE;
		if (!part.compressed_bytes && (part.kind == FAT_PTX || part.kind == FAT_CUBIN))
			result = read_plain(image, bytes + at + part.header_bytes);
	}
	return result;
}

static CUresult read_any(struct image *image, const void *bytes)
{
	struct fat_wrapper wrapper;

	if (begins_with(bytes, FAT_MAGIC))
		return read_fat(image, bytes);
	if (!begins_with(bytes, WRAPPER_MAGIC))
		return read_plain(image, bytes);
	memcpy(&wrapper, bytes, sizeof(wrapper));
	return wrapper.image && begins_with(wrapper.image, FAT_MAGIC)
		       ? read_fat(image, wrapper.image)
		       : CUDA_ERROR_INVALID_IMAGE;
}

CUresult image_open(const void *bytes, struct image **image)
{
	struct image *made = calloc(1, sizeof(*made));
	CUresult result;

	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made->references = 1;
	result = read_any(made, bytes);
	if (result == CUDA_SUCCESS)
		*image = made;
	else
		image_drop(made);
	return result;
}

CUresult image_open_file(const char *path, struct image **image)
{
	FILE *file = fopen(path, "re");
	CUresult result = CUDA_ERROR_FILE_NOT_FOUND;
	char *bytes = NULL;
	size_t length = 0, room = 0;

	if (!file)
		return result;
	do {
		char *grown = realloc(bytes, room + 65536 + 1);

		if (!grown)
			break;
		bytes = grown;
		room += 65536;
		length += fread(bytes + length, 1, room - length, file);
	} while (length == room);
	(void)fclose(file);
	if (bytes) {
		bytes[length] = '\0';
		result = image_open(bytes, image);
	}
	free(bytes);
	return result;
}
