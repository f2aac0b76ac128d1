/*
 * A function of the driver, looked up by the very name that is written: for
 * programs that are not linked to it, and call one thing many ways. `driver`
 * must be in sight, what dlopen gave for libcuda.so.1.
 */
#ifndef PROGRAMS_CALL_H
#define PROGRAMS_CALL_H

#define __CUDA_API_VERSION_INTERNAL 1 /* else cuda.h renames what is looked up */
#include <cuda.h>

#include <dlfcn.h>

#define CALL(name, ...) (((__typeof__(name) *)dlsym(driver, #name))(__VA_ARGS__))

#endif
