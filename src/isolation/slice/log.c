/* The only way this library speaks. */
#include "slice/log.h"

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
	int written =
		vsnprintf(line + prefix, sizeof(line) - (size_t)prefix - 1, format, arguments);
	va_end(arguments);
	if (written > 0) {
		size_t length = (size_t)prefix + (size_t)written;

		if (length > sizeof(line) - 2)
			length = sizeof(line) - 2;
		/* A file that is not text may be quoted here; it stays one line. */
		for (size_t i = 0; i < length; i++)
			if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
				line[i] = '?';
		line[length++] = '\n';
		/* Nothing can be done when stderr is closed. */
		ssize_t ignored = write(STDERR_FILENO, line, length);
		(void)ignored;
	}
	errno = saved;
}
