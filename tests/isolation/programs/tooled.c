/*
 * Prints whose function the tool has that CUDA_INJECTION64_PATH names, and how often it can
 * allocate so many bytes with it.
 *
 *	tooled WAY BYTES
 */
#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **words)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CUresult (*init)(unsigned) = NULL, (*retain)(CUcontext *, CUdevice) = NULL;
	CUresult (*set)(CUcontext) = NULL, (**allocates)(CUdeviceptr *, size_t);
	CUcontext context;
	CUdeviceptr pointer;
	Dl_info object;
	int pieces = 0;

	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&set = dlsym(driver, "cuCtxSetCurrent");
	if (count != 3 || init(0) || retain(&context, 0) || set(context))
		return 2;
	void *tool = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW | RTLD_NOLOAD);

	allocates = tool ? dlsym(tool, "tool_allocates") : NULL;
	if (!allocates || !*allocates || !dladdr((void *)*allocates, &object))
		return 3;
	while ((*allocates)(&pointer, strtoull(words[2], NULL, 10)) == CUDA_SUCCESS)
		pieces++;
	printf("%s %d\n", strrchr(object.dli_fname, '/') + 1, pieces);
	return 0;
}
