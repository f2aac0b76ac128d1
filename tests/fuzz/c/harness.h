/* Reads inputs (length in 4 bytes, content) and answers each with a dot; clang's fuzzer brings its own main. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef FUZZER
int main(void)
{
	uint32_t size;

	while (fread(&size, sizeof(size), 1, stdin) == 1) {
		/* Exactly as large as the input: a byte too far is seen. */
		uint8_t *data = malloc(size ? size : 1);

		if (!data || fread(data, 1, size, stdin) != size)
			return 1;
		LLVMFuzzerTestOneInput(data, size);
		free(data);
		if (write(STDOUT_FILENO, ".", 1) != 1)
			return 1;
	}
	return 0;
}
#endif
