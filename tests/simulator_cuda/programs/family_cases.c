/* Pools, virtual memory management and arrays: what each takes, holds and gives back. */
#include "check.h"

static uint64_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	uint64_t value;

	OK(cuMemPoolGetAttribute(pool, attribute, &value));
	return value;
}

static void a_pool_grows_by_chunks_and_keeps_them_until_it_is_synchronised(void)
{
	CUmemoryPool pool;
	CUdeviceptr address;
	size_t before;

	begin();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	before = free_bytes();
	OK(cuMemAllocAsync(&address, 1 * MIB, NULL));
	CHECK_EQUAL(before - free_bytes(), 32 * MIB);
	CHECK_EQUAL(pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1 * MIB);
	CHECK_EQUAL(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB);
	OK(cuMemFreeAsync(address, NULL));
	CHECK_EQUAL(before - free_bytes(), 32 * MIB);
	OK(cuStreamSynchronize(NULL));
	CHECK_EQUAL(free_bytes(), before);
	CHECK_EQUAL(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 32 * MIB);
}

static void a_release_threshold_keeps_memory_until_it_is_trimmed(void)
{
	CUmemoryPool pool;
	CUdeviceptr address;
	uint64_t threshold = UINT64_MAX;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&address, 100 * MIB, NULL));
	OK(cuMemFreeAsync(address, NULL));
	OK(cuCtxSynchronize());
	CHECK_EQUAL(before - free_bytes(), 128 * MIB);
	OK(cuMemPoolTrimTo(pool, 40 * MIB));
	CHECK_EQUAL(before - free_bytes(), 64 * MIB);
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK_EQUAL(free_bytes(), before);
}

static void a_pool_of_ones_own_is_charged_and_destroyed(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool;
	CUdeviceptr address;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuMemPoolCreate(&pool, &properties));
	OK(cuMemAllocFromPoolAsync(&address, 33 * MIB, pool, NULL));
	CHECK_EQUAL(before - free_bytes(), 64 * MIB);
	OK(cuMemPoolDestroy(pool));
	CHECK_EQUAL(before - free_bytes(), 64 * MIB);
	FAILS(cuMemAllocFromPoolAsync(&address, MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeAsync(address, NULL));
	CHECK_EQUAL(free_bytes(), before);
}

static void a_pool_on_a_full_card_refuses(void)
{
	CUdeviceptr address;

	begin();
	FAILS(cuMemAllocAsync(&address, free_bytes() + MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAllocAsync(&address, 64 * MIB, NULL));
}

static CUmemAllocationProp on_the_device(CUmemAllocationHandleType handle)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .requestedHandleTypes = handle,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
}

static void physical_memory_lives_until_handle_and_mappings_are_gone(void)
{
	CUmemAllocationProp properties = on_the_device(CU_MEM_HANDLE_TYPE_NONE);
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
				  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr range;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuMemAddressReserve(&range, 8 * MIB, 0, 0, 0));
	CHECK_EQUAL(free_bytes(), before);
	FAILS(cuMemCreate(&handle, MIB, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemCreate(&handle, 4 * MIB, &properties, 0));
	CHECK_EQUAL(before - free_bytes(), 4 * MIB);
	OK(cuMemMap(range, 4 * MIB, 0, handle, 0));
	OK(cuMemMap(range + 4 * MIB, 4 * MIB, 0, handle, 0));
	OK(cuMemSetAccess(range, 8 * MIB, &access, 1));
	OK(cuMemRelease(handle));
	CHECK_EQUAL(before - free_bytes(), 4 * MIB);
	OK(cuMemsetD8_v2(range, 9, 16));
	CHECK_EQUAL(*(char *)(uintptr_t)(range + 4 * MIB + 15), 9);
	OK(cuMemUnmap(range, 8 * MIB));
	CHECK_EQUAL(free_bytes(), before);
	OK(cuMemAddressFree(range, 8 * MIB));
}

static void a_shared_handle_is_charged_to_its_exporter_only(void)
{
	CUmemAllocationProp properties = on_the_device(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemGenericAllocationHandle handle;
	CUmemGenericAllocationHandle imported;
	size_t before;
	int file;

	begin();
	before = free_bytes();
	OK(cuMemCreate(&handle, 2 * MIB, &properties, 0));
	OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					0));
	OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK_EQUAL(before - free_bytes(), 2 * MIB);
	OK(cuMemRelease(handle));
	OK(cuMemRelease(imported));
	CHECK_EQUAL(free_bytes(), before);
}

static void a_full_card_creates_no_physical_memory(void)
{
	CUmemAllocationProp properties = on_the_device(CU_MEM_HANDLE_TYPE_NONE);
	CUmemGenericAllocationHandle handle;

	begin();
	FAILS(cuMemCreate(&handle, free_bytes() + 2 * MIB, &properties, 0),
	      CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemCreate(&handle, free_bytes(), &properties, 0));
	CHECK_EQUAL(free_bytes(), 0);
}

static size_t taken_by(CUDA_ARRAY3D_DESCRIPTOR shape)
{
	CUarray array;
	size_t before = free_bytes();
	size_t taken;

	OK(cuArray3DCreate_v2(&array, &shape));
	taken = before - free_bytes();
	OK(cuArrayDestroy(array));
	CHECK_EQUAL(free_bytes(), before);
	return taken;
}

static void arrays_take_what_their_format_says(void)
{
	begin();
	CHECK_EQUAL(taken_by((CUDA_ARRAY3D_DESCRIPTOR){.Width = 4096,
						       .Height = 4096,
						       .Format = CU_AD_FORMAT_FLOAT,
						       .NumChannels = 4}),
		    256 * MIB);
	CHECK_EQUAL(taken_by((CUDA_ARRAY3D_DESCRIPTOR){.Width = 256,
						       .Height = 256,
						       .Depth = 256,
						       .Format = CU_AD_FORMAT_HALF,
						       .NumChannels = 1}),
		    32 * MIB);
	CHECK_EQUAL(taken_by((CUDA_ARRAY3D_DESCRIPTOR){.Width = 4096,
						       .Height = 4096,
						       .Format = CU_AD_FORMAT_NV12,
						       .NumChannels = 3}),
		    24 * MIB);
	CHECK_EQUAL(taken_by((CUDA_ARRAY3D_DESCRIPTOR){.Width = 8192,
						       .Height = 4096,
						       .Format = CU_AD_FORMAT_BC1_UNORM,
						       .NumChannels = 4}),
		    16 * MIB);
}

static void mipmapped_arrays_take_all_their_levels(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 4096,
					 .Height = 4096,
					 .Format = CU_AD_FORMAT_UNSIGNED_INT8,
					 .NumChannels = 4};
	CUmipmappedArray array;
	CUarray level;
	CUDA_ARRAY_DESCRIPTOR found;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuMipmappedArrayCreate(&array, &shape, 3)); /* 64 + 16 + 4 MiB */
	CHECK_EQUAL(before - free_bytes(), 84 * MIB);
	OK(cuMipmappedArrayGetLevel(&level, array, 2));
	OK(cuArrayGetDescriptor_v2(&found, level));
	CHECK_EQUAL(found.Width, 1024);
	OK(cuMipmappedArrayDestroy(array));
	CHECK_EQUAL(free_bytes(), before);
}

static void a_row_of_an_array_is_copied_and_read(void)
{
	CUDA_ARRAY_DESCRIPTOR shape = {
		.Width = 16, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
	CUDA_MEMCPY2D copy = {0};
	char in[16] = "fifteen letters";
	char out[16] = {0};
	CUarray array;

	begin();
	OK(cuArrayCreate_v2(&array, &shape));
	copy.srcMemoryType = CU_MEMORYTYPE_HOST;
	copy.srcHost = in;
	copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	copy.dstArray = array;
	copy.dstY = 2;
	copy.WidthInBytes = sizeof(in);
	copy.Height = 1;
	OK(cuMemcpy2D_v2(&copy));
	OK(cuMemcpyAtoH_v2(out, array, 32, sizeof(out)));
	CHECK_EQUAL(strcmp(in, out), 0);
}

static void external_memory_is_its_exporters(void)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
		.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 64 * MIB};
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = 64 * MIB};
	CUexternalMemory external;
	CUdeviceptr address;
	size_t before;

	begin();
	before = free_bytes();
	description.handle.fd = fileno(tmpfile());
	OK(cuImportExternalMemory(&external, &description));
	OK(cuExternalMemoryGetMappedBuffer(&address, external, &buffer));
	CHECK_EQUAL(free_bytes(), before);
	OK(cuDestroyExternalMemory(external));
}

CASES(CASE(a_pool_grows_by_chunks_and_keeps_them_until_it_is_synchronised),
      CASE(a_release_threshold_keeps_memory_until_it_is_trimmed),
      CASE(a_pool_of_ones_own_is_charged_and_destroyed), CASE(a_pool_on_a_full_card_refuses),
      CASE(physical_memory_lives_until_handle_and_mappings_are_gone),
      CASE(a_shared_handle_is_charged_to_its_exporter_only),
      CASE(a_full_card_creates_no_physical_memory), CASE(arrays_take_what_their_format_says),
      CASE(mipmapped_arrays_take_all_their_levels), CASE(a_row_of_an_array_is_copied_and_read),
      CASE(external_memory_is_its_exporters));
