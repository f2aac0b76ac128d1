/* One line on stderr, for what a person must know; see slice/log.c. */
#ifndef GPUSLICE_SLICE_LOG_H
#define GPUSLICE_SLICE_LOG_H

__attribute__((format(printf, 1, 2))) void log_line(const char *format, ...);

#endif
