/* cuDeviceGetAttribute and the older cuDeviceGetProperties. */
#include "driver.h"

#include <string.h>

/* What is the same for all cards that are simulated. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} constants[] = {
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 98304},
	{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 98304},
	{CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
	{CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
	{CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
	{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
	{CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
	{CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
	{CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
	{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
	{CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
	{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
	{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 6291456},
	{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 4096},
	{CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0},
};

static int clock_khz(unsigned mhz)
{
	return (int)(mhz ? mhz : 1000) * 1000;
}

/* What the node says about the card; false for an attribute that is not of this kind. */
static bool of_card(const struct device *device, CUdevice_attribute attribute, int *value)
{
	const struct gpusim_card *card = device_card(device);
	const struct gpusim_instance *instance = device_instance(device);

	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = (int)(instance ? instance->multiprocessors : card->multiprocessors);
		return true;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = (int)card->compute_major;
		return true;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = (int)card->compute_minor;
		return true;
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
		*value = (int)card->pci_domain;
		return true;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = (int)card->pci_bus;
		return true;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
		*value = (int)card->pci_device;
		return true;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		*value = (int)card->compute_mode;
		return true;
	case CU_DEVICE_ATTRIBUTE_INTEGRATED:
		*value = (int)card->memory_unified;
		return true;
	case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
		*value = (int)card->pageable_memory;
		return true;
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
		*value = (int)card->ecc_enabled;
		return true;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		*value = clock_khz(card->graphics_max_mhz);
		return true;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		*value = clock_khz(card->memory_max_mhz);
		return true;
	default:
		return false;
	}
}

static int constant(CUdevice_attribute attribute)
{
	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
		if (constants[i].attribute == attribute)
			return constants[i].value;
	}
	return 0;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || attribute <= 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!of_card(device, attribute, value))
		*value = constant(attribute);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device)
{
	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	if (!driver_device(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*properties = (CUdevprop){
		.maxThreadsPerBlock = 1024,
		.maxThreadsDim = {1024, 1024, 64},
		.maxGridSize = {2147483647, 65535, 65535},
		.sharedMemPerBlock = 49152,
		.totalConstantMemory = 65536,
		.SIMDWidth = 32,
		.memPitch = 2147483647,
		.regsPerBlock = 65536,
		.clockRate = 1000000,
		.textureAlign = 512,
	};
	return CUDA_SUCCESS;
}
