/*
 * Uses the driver wrongly: too early, on a device that is not there, with nowhere to put the
 * answer. Prints what each call says, a line each, and that the card still serves afterwards.
 *
 *	wrong
 */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>

enum { NOBODY = 9, OUTSIDE = 64 };

#define HUGE_BYTES ((size_t)5 << 40)
#define MIB ((size_t)1 << 20)

static void *driver;

#define CALL(name, ...) (((__typeof__(name) *)dlsym(driver, #name))(__VA_ARGS__))
#define SHOW(name, ...) printf("%s: " #name " %d\n", when, CALL(name, __VA_ARGS__))

static void show_devices(const char *when, CUdevice device)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUmemGenericAllocationHandle memory;
	CUcontext context;
	size_t bytes;

	SHOW(cuDeviceTotalMem_v2, &bytes, device);
	SHOW(cuDevicePrimaryCtxRetain, &context, device);
	SHOW(cuDevicePrimaryCtxRelease_v2, device);
	SHOW(cuDevicePrimaryCtxReset_v2, device);
	SHOW(cuCtxCreate_v2, &context, 0, device);
	SHOW(cuMemCreate, &memory, 2 * MIB, &prop, 0);
	SHOW(cuMemCreate, &memory, HUGE_BYTES, &prop, 0);
	SHOW(cuDeviceGraphMemTrim, device);
}

/* `bytes` that the slice has, and that it has not. */
static void show_nowhere(const char *when, size_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	const CUDA_ARRAY_DESCRIPTOR array = {bytes / 4096, 4096, CU_AD_FORMAT_UNSIGNED_INT8, 1};
	const CUDA_ARRAY3D_DESCRIPTOR array3d = {
		bytes / 4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
	size_t pitch;

	SHOW(cuMemAlloc_v2, NULL, bytes);
	SHOW(cuMemAllocManaged, NULL, bytes, CU_MEM_ATTACH_GLOBAL);
	SHOW(cuMemAllocPitch_v2, NULL, &pitch, bytes / 4096, 4096, 4);
	SHOW(cuMemCreate, NULL, bytes, &prop, 0);
	SHOW(cuMemAllocAsync, NULL, bytes, NULL);
	SHOW(cuArrayCreate_v2, NULL, &array);
	SHOW(cuArray3DCreate_v2, NULL, &array3d);
	SHOW(cuMipmappedArrayCreate, NULL, &array3d, 1);
}

static void show_too_early(const char *when)
{
	CUdeviceptr pointer;

	SHOW(cuMemAlloc_v2, &pointer, MIB);
	SHOW(cuMemAllocManaged, &pointer, MIB, CU_MEM_ATTACH_GLOBAL);
	SHOW(cuMemAllocAsync, &pointer, MIB, NULL);
	show_devices(when, 0);
}

int main(void)
{
	const char *when = "started";
	CUcontext context;
	CUdeviceptr pointer;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		return 2;
	show_too_early("too early");
	SHOW(cuInit, 0);
	show_devices("no such device", NOBODY);
	show_devices("no such number", OUTSIDE);
	show_devices("negative number", -1);
	SHOW(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	show_nowhere("nowhere", MIB);
	show_nowhere("nowhere, too much", HUGE_BYTES);
	SHOW(cuMemAlloc_v2, &pointer, MIB);
	return 0;
}
