/* The only way this library speaks. */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/*
 * Writes "gpuslice: ...\n" to stderr in one write, so that lines of several
 * processes do not mix. Keeps errno: we run inside other people's calls. Any
 * thread.
 */
void log_line(const char *format, ...)
{
	int saved = errno;
	char line[768];
	const int prefix = snprintf(line, sizeof(line), "gpuslice: ");
	va_list arguments;

	va_start(arguments, format);
	int written = vsnprintf(line + prefix, sizeof(line) - (size_t)prefix - 1, format, arguments);
	va_end(arguments);
	if (written > 0) {
		size_t length = (size_t)prefix + (size_t)written;

		if (length > sizeof(line) - 2)
			length = sizeof(line) - 2;
		line[length++] = '\n';
		/* Nothing can be done when stderr is closed. */
		ssize_t ignored = write(STDERR_FILENO, line, length);
		(void)ignored;
	}
	errno = saved;
}
