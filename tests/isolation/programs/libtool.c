/* A tool that the driver opens while it starts, and that looks functions up
 * then. */
#include <cuda.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

CUresult (*tool_allocates)(CUdeviceptr *, size_t);

/* TOOL_LOOKS_BY: "name", or "address" as a runtime that is linked into it does.
 */
int InitializeInjection(void);
int InitializeInjection(void)
{
	CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	const char *way = getenv("TOOL_LOOKS_BY");

	if (!way || !strcmp(way, "name")) {
		*(void **)&tool_allocates = dlsym(driver, "cuMemAlloc_v2");
		return 1;
	}
	*(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
	return get("cuMemAlloc", (void **)&tool_allocates, 12000, 0, NULL) == CUDA_SUCCESS;
}
