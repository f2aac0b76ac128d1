/* One line on stderr, for what a person must know; see log.c. */
#ifndef GPUSLICE_LOG_H
#define GPUSLICE_LOG_H

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

#endif
