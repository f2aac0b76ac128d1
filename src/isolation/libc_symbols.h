/* The C library's own dlsym, dlvsym and dlopen; see libc_symbols.c. */
#ifndef GPUSLICE_LIBC_SYMBOLS_H
#define GPUSLICE_LIBC_SYMBOLS_H

struct libc_symbols {
	void *(*dlsym)(void *handle, const char *name);
	void *(*dlvsym)(void *handle, const char *name, const char *version);
	void *(*dlopen)(const char *file, int flags);
};

const struct libc_symbols *libc_symbols(void);

#endif
