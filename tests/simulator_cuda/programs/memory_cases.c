/* cuMemAlloc and its kin: what each takes of the card, and that a full card refuses. */
#include "check.h"

static void a_context_takes_its_cost(void)
{
	size_t before;
	CUcontext second;

	begin();
	before = free_bytes();
	CHECK_EQUAL(before, (16160 - 240) * MIB);
	OK(cuCtxCreate_v2(&second, 0, 0));
	CHECK_EQUAL(free_bytes(), before - 240 * MIB);
	OK(cuCtxDestroy_v2(second));
	CHECK_EQUAL(free_bytes(), before);
}

static void every_version_of_context_creation_counts(void)
{
	CUcontext made[4];
	size_t before;

	begin();
	before = free_bytes();
	OK(cuCtxCreate(&made[0], 0, 0));
	OK(cuCtxCreate_v2(&made[1], 0, 0));
	OK(cuCtxCreate_v3(&made[2], NULL, 0, 0, 0));
	OK(cuCtxCreate_v4(&made[3], NULL, 0, 0));
	CHECK_EQUAL(free_bytes(), before - 4 * 240 * MIB);
}

static void large_requests_take_whole_blocks(void)
{
	CUdeviceptr address;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuMemAlloc_v2(&address, 3 * MIB));
	CHECK_EQUAL(before - free_bytes(), 4 * MIB);
	OK(cuMemFree_v2(address));
	CHECK_EQUAL(free_bytes(), before);
}

static void small_requests_share_a_block(void)
{
	CUdeviceptr address[2048];
	size_t before;

	begin();
	before = free_bytes();
	for (int i = 0; i < 2048; i++)
		OK(cuMemAlloc_v2(&address[i], 1));
	CHECK_EQUAL(before - free_bytes(), 2 * MIB);
	for (int i = 0; i < 2048; i++)
		OK(cuMemFree_v2(address[i]));
	CHECK_EQUAL(free_bytes(), before);
}

static void a_full_card_refuses_and_stays_usable(void)
{
	CUdeviceptr all;
	CUdeviceptr more;

	begin();
	OK(cuMemAlloc_v2(&all, free_bytes()));
	CHECK_EQUAL(free_bytes(), 0);
	FAILS(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
	FAILS(cuMemAllocManaged(&more, 2 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(all));
	OK(cuMemAlloc_v2(&more, 1));
}

static void sizes_that_overflow_are_refused(void)
{
	CUdeviceptr address;
	size_t pitch;

	begin();
	FAILS(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cuMemAlloc_v2(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	FAILS(cuMemAllocPitch_v2(&address, &pitch, SIZE_MAX, SIZE_MAX, 4),
	      CUDA_ERROR_INVALID_VALUE);
}

static void pitched_memory_takes_pitch_times_height(void)
{
	CUdeviceptr address;
	size_t pitch;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuMemAllocPitch_v2(&address, &pitch, 513, 8192, 4));
	CHECK_EQUAL(pitch, 1024);
	CHECK_EQUAL(before - free_bytes(), 8 * MIB);
}

static void managed_memory_is_the_hosts_as_well(void)
{
	CUdeviceptr address;

	begin();
	OK(cuMemAllocManaged(&address, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
	memset((void *)(uintptr_t)address, 7, 4 * MIB);
	CHECK_EQUAL(((char *)(uintptr_t)address)[4 * MIB - 1], 7);
}

static void pinned_host_memory_takes_nothing(void)
{
	size_t before;
	void *host;
	CUdeviceptr seen;
	static char own[65536];

	begin();
	before = free_bytes();
	OK(cuMemHostAlloc(&host, 64 * MIB, CU_MEMHOSTALLOC_PORTABLE));
	OK(cuMemHostGetDevicePointer_v2(&seen, host, 0));
	OK(cuMemHostRegister_v2(own, sizeof(own), 0));
	FAILS(cuMemHostRegister_v2(own, sizeof(own), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK_EQUAL(free_bytes(), before);
	OK(cuMemHostUnregister(own));
	OK(cuMemFreeHost(host));
}

static void what_is_copied_in_comes_back_out(void)
{
	char in[1000];
	char out[1000] = {0};
	CUdeviceptr one;
	CUdeviceptr other;

	begin();
	memset(in, 42, sizeof(in));
	OK(cuMemAlloc_v2(&one, sizeof(in)));
	OK(cuMemAlloc_v2(&other, sizeof(in)));
	OK(cuMemcpyHtoD_v2(one, in, sizeof(in)));
	OK(cuMemcpyDtoD_v2(other, one, sizeof(in)));
	OK(cuMemcpyDtoH_v2(out, other, sizeof(out)));
	CHECK_EQUAL(memcmp(in, out, sizeof(in)), 0);
	OK(cuMemsetD32_v2(one, 0x01020304, 250));
	OK(cuMemcpyDtoH_v2(out, one, sizeof(out)));
	CHECK_EQUAL(out[996], 4);
}

static void an_address_that_is_none_is_not_freed(void)
{
	CUdeviceptr address;

	begin();
	OK(cuMemAlloc_v2(&address, 1024));
	FAILS(cuMemFree_v2(address + 512), CUDA_ERROR_INVALID_VALUE);
	FAILS(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(0));
	OK(cuMemFree_v2(address));
	FAILS(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
}

static void a_context_takes_its_memory_along(void)
{
	CUcontext second;
	CUdeviceptr address;
	size_t before;

	begin();
	before = free_bytes();
	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuMemAlloc_v2(&address, 100 * MIB));
	OK(cuMemAlloc_v2(&address, 100));
	OK(cuCtxDestroy_v2(second));
	CHECK_EQUAL(free_bytes(), before);
}

static void a_larger_heap_takes_memory_without_an_allocation(void)
{
	size_t before;

	begin();
	before = free_bytes();
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB));
	CHECK_EQUAL(before - free_bytes(), 100 * MIB);
}

CASES(CASE(a_context_takes_its_cost), CASE(every_version_of_context_creation_counts),
      CASE(large_requests_take_whole_blocks), CASE(small_requests_share_a_block),
      CASE(a_full_card_refuses_and_stays_usable), CASE(sizes_that_overflow_are_refused),
      CASE(pitched_memory_takes_pitch_times_height), CASE(managed_memory_is_the_hosts_as_well),
      CASE(pinned_host_memory_takes_nothing), CASE(what_is_copied_in_comes_back_out),
      CASE(an_address_that_is_none_is_not_freed), CASE(a_context_takes_its_memory_along),
      CASE(a_larger_heap_takes_memory_without_an_allocation));
