/* The names in a PTX text: kernels, their parameters, variables, texture references. */
#include "image.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct token {
	const char *text;
	size_t length; /* 0: the end */
};

static bool is_of_word(char letter)
{
	return isalnum((unsigned char)letter) || (letter && strchr("_$.%", letter));
}

static const char *skip_space(const char *text)
{
	for (;;) {
		if (isspace((unsigned char)*text)) {
			text++;
		} else if (text[0] == '/' && text[1] == '/') {
			text += strcspn(text, "\n");
		} else if (text[0] == '/' && text[1] == '*') {
			const char *end = strstr(text + 2, "*/");

			text = end ? end + 2 : text + strlen(text);
		} else {
			return text;
		}
	}
}

/* A word, or one other character. */
static struct token next(const char **text)
{
	struct token token = {.text = skip_space(*text)};

	while (is_of_word(token.text[token.length]))
		token.length++;
	if (!token.length && *token.text)
		token.length = 1;
	*text = token.text + token.length;
	return token;
}

static bool is(struct token token, const char *word)
{
	return token.length == strlen(word) && memcmp(token.text, word, token.length) == 0;
}

/* ".u64" is 8 bytes; 0 for what is no type. */
static size_t type_bytes(struct token token)
{
	if (token.length < 3 || token.text[0] != '.' || !strchr("usfb", token.text[1]))
		return 0;
	return strtoul(token.text + 2, NULL, 10) / 8;
}

/* Behind ".param": up to the comma or the bracket that ends it, which is returned. */
static struct token parameter(const char **text, struct image_parameter *what)
{
	size_t alignment = 1, elements = 1, bytes = 0;
	struct token token;

	for (token = next(text); token.length && !is(token, ",") && !is(token, ")");
	     token = next(text)) {
		if (is(token, ".align"))
			alignment = strtoul(next(text).text, NULL, 10);
		else if (is(token, "["))
			elements = strtoul(next(text).text, NULL, 10);
		else if (is(token, ".ptr"))
			while (!is(token, ",") && !is(token, ")") && token.length &&
			       !(isalpha((unsigned char)*token.text) || *token.text == '_'))
				token = next(text); /* its alignment is that of what it points to */
		else if (type_bytes(token))
			bytes = type_bytes(token);
	}
	what->bytes = bytes * elements;
	if (alignment < bytes)
		alignment = bytes;
	what->offset = alignment ? (what->offset + alignment - 1) / alignment * alignment : 0;
	return token;
}

static CUresult entry(struct image *image, const char **text)
{
	struct token token = next(text);
	struct image_kernel *kernel = image_add(image, token.text, token.length);
	struct image_parameter what = {0};
	size_t place = 0;

	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (token.length == 0 || !is(next(text), "("))
		return CUDA_SUCCESS; /* a kernel without parameters needs no brackets */
	for (token = next(text); is(token, ".param"); token = next(text)) {
		token = parameter(text, &what);
		if (!image_add_parameter(kernel, place++, what))
			return CUDA_ERROR_OUT_OF_MEMORY;
		what.offset += what.bytes;
		if (!is(token, ","))
			break;
	}
	return CUDA_SUCCESS;
}

/* Behind ".global" or ".const": up to its end or its values. */
static CUresult variable(struct image *image, const char **text)
{
	struct token name = {0};
	size_t bytes = 0, elements = 1;

	for (struct token token = next(text);
	     token.length && !is(token, ";") && !is(token, "=") && !is(token, ",");
	     token = next(text)) {
		if (is(token, ".align"))
			next(text);
		else if (is(token, "["))
			elements *= strtoul(next(text).text, NULL, 10);
		else if (type_bytes(token))
			bytes = type_bytes(token);
		else if (token.text[0] != '.' && is_of_word(token.text[0]))
			name = token;
	}
	return !name.length || image_add_variable(image, name.text, name.length, bytes * elements)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult image_read_ptx(struct image *image, const char *text)
{
	struct token token = next(&text);
	bool has_target = false;

	if (!is(token, ".version"))
		return token.length ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
	while ((token = next(&text)).length) {
		CUresult result = CUDA_SUCCESS;

		has_target |= is(token, ".target");
		if (is(token, ".entry"))
			result = entry(image, &text);
		else if (is(token, ".global") || is(token, ".const"))
			result = variable(image, &text);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return has_target ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}
