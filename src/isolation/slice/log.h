/* One line on stderr, for what a person must know; see slice/log.c. */
#pragma once

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);
