/* What is loaded is read: kernels by name, their parameters; and what is kept for the program. */
#include "check.h"

static const char two[] = ".version 8.0 // made by hand, .entry never()\n.target sm_70\n"
			  "/* .entry nor() */ .visible .entry add(\n"
			  ".param .u64 .ptr .global .align 4 add_param_0,\n"
			  ".param .u32 add_param_1,\n.param .align 8 .b8 add_param_2[24],\n"
			  ".param .u8 add_param_3) { ret; }\n"
			  ".weak .entry _Z3temv() { ret; }\n.global .texref picture;\n";

static CUmodule loaded(const void *image)
{
	CUmodule module;

	OK(cuModuleLoadData(&module, image));
	return module;
}

static void what_is_no_image_does_not_load(void)
{
	CUmodule module;
	CUlibrary library;
	static const char elf_of_the_host[64] = "\177ELF\2\1\1";

	begin();
	FAILS(cuModuleLoadData(&module, ""), CUDA_ERROR_INVALID_IMAGE);
	FAILS(cuModuleLoadData(&module, "any"), CUDA_ERROR_INVALID_PTX);
	FAILS(cuModuleLoadData(&module, ".version 8.0\n"), CUDA_ERROR_INVALID_PTX);
	FAILS(cuModuleLoadData(&module, elf_of_the_host), CUDA_ERROR_INVALID_IMAGE);
	FAILS(cuModuleLoad(&module, "/nonexistent"), CUDA_ERROR_FILE_NOT_FOUND);
	FAILS(cuModuleLoad(&module, "/proc/self/exe"), CUDA_ERROR_INVALID_IMAGE);
	FAILS(cuLibraryLoadData(&library, "any", NULL, NULL, 0, NULL, NULL, 0),
	      CUDA_ERROR_INVALID_PTX);
}

static void a_kernel_that_is_not_in_the_image_cannot_be_had(void)
{
	CUfunction functions[2], function;
	CUlibrary library;
	CUkernel kernel;
	CUmodule module;
	unsigned count;

	begin();
	module = loaded(two);
	OK(cuModuleGetFunction(&function, module, "add"));
	FAILS(cuModuleGetFunction(&function, module, "never"), CUDA_ERROR_NOT_FOUND);
	FAILS(cuModuleGetFunction(&function, module, "nor"), CUDA_ERROR_NOT_FOUND);
	OK(cuModuleGetFunctionCount(&count, module));
	CHECK_EQUAL(count, 2);
	OK(cuModuleEnumerateFunctions(functions, 2, module));
	CHECK(functions[0] == function);
	OK(cuLibraryLoadData(&library, two, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "_Z3temv"));
	FAILS(cuLibraryGetKernel(&kernel, library, "tem"), CUDA_ERROR_NOT_FOUND);
	OK(cuLibraryGetKernelCount(&count, library));
	CHECK_EQUAL(count, 2);
}

static void a_kernels_parameters_are_told(void)
{
	static const size_t offsets[] = {0, 8, 16, 40}, sizes[] = {8, 4, 24, 1};
	CUfunction function;
	size_t offset, bytes;

	begin();
	OK(cuModuleGetFunction(&function, loaded(two), "add"));
	for (size_t i = 0; i < 4; i++) {
		OK(cuFuncGetParamInfo(function, i, &offset, &bytes));
		CHECK_EQUAL(offset, offsets[i]);
		CHECK_EQUAL(bytes, sizes[i]);
	}
	FAILS(cuFuncGetParamInfo(function, 4, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
}

static void a_modules_variables_have_a_place_and_a_size(void)
{
	static const char code_with[] = ".version 8.0\n.target sm_70\n"
					".visible .global .align 4 .b8 table[64] = {1, 2};\n"
					".const .align 8 .u64 count;\n";
	CUdeviceptr address, again;
	CUmodule module;
	size_t bytes;

	begin();
	module = loaded(code_with);
	OK(cuModuleGetGlobal_v2(&address, &bytes, module, "table"));
	CHECK_EQUAL(bytes, 64);
	OK(cuMemsetD8_v2(address, 7, bytes));
	OK(cuModuleGetGlobal_v2(&again, NULL, module, "table"));
	CHECK(again == address);
	OK(cuModuleGetGlobal_v2(&address, &bytes, module, "count"));
	CHECK_EQUAL(bytes, 8);
	FAILS(cuModuleGetGlobal_v2(&address, &bytes, module, "sum"), CUDA_ERROR_NOT_FOUND);
	OK(cuModuleUnload(module));
}

static void what_was_linked_has_the_kernels_of_all(void)
{
	static const char other[] = ".version 8.0\n.target sm_70\n.entry other() {}";
	CUlinkState link;
	CUfunction function;
	size_t bytes, offset;
	void *image;

	begin();
	OK(cuLinkCreate_v2(0, NULL, NULL, &link));
	FAILS(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)"junk", 4, "a", 0, NULL, NULL),
	      CUDA_ERROR_INVALID_PTX);
	OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)two, sizeof(two), "a", 0, NULL, NULL));
	/* A text need not end with a zero. */
	OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)other, sizeof(other) - 1, "b", 0, NULL,
			    NULL));
	OK(cuLinkComplete(link, &image, &bytes));
	CHECK_EQUAL(((char *)image)[bytes - 1], 0);
	CUmodule module = loaded(image);
	OK(cuLinkDestroy(link));
	OK(cuModuleGetFunction(&function, module, "other"));
	OK(cuModuleGetFunction(&function, module, "add"));
	OK(cuFuncGetParamInfo(function, 3, &offset, &bytes));
	CHECK_EQUAL(offset, 40);
	CHECK_EQUAL(bytes, 1);
}

static void the_launch_calls_of_cuda_3_set_block_and_parameters_one_by_one(void)
{
	uint64_t ns = 3000000, began;
	CUfunction function;

	begin();
	function = kernel("spin");
	OK(cuFuncSetBlockShape(function, 32, 1, 1));
	FAILS(cuFuncSetBlockShape(function, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuFuncSetSharedSize(function, 16));
	OK(cuParamSetv(function, 0, &ns, sizeof(ns)));
	OK(cuParamSetSize(function, sizeof(ns)));
	stop_the_clock();
	began = gpusim_now_ns();
	OK(cuLaunchGrid(function, 1, 1));
	OK(cuCtxSynchronize());
	CHECK_NEAR(gpusim_now_ns() - began, ns, 100000);
}

static int destroyed;

static void count_destroyed(void *pointer)
{
	CHECK(pointer == &destroyed);
	OK(cuCtxSynchronize()); /* called without the driver's locks */
	destroyed++;
}

static void an_object_lives_as_long_as_a_graph_that_keeps_it(void)
{
	CUuserObject object;
	CUgraph graph, clone;
	CUgraphExec exec;

	begin();
	OK(cuGraphCreate(&graph, 0));
	OK(cuUserObjectCreate(&object, &destroyed, count_destroyed, 1,
			      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	OK(cuGraphClone(&clone, graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(clone));
	CHECK_EQUAL(destroyed, 0);
	OK(cuGraphExecDestroy(exec));
	CHECK_EQUAL(destroyed, 1);
	FAILS(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
}

static void a_stream_waits_until_the_word_is_written(void)
{
	CUdeviceptr word;
	CUstream waiting;

	begin();
	waiting = stream();
	OK(cuMemAlloc_v2(&word, 8));
	OK(cuMemsetD32_v2(word, 0, 2));
	OK(cuStreamWaitValue32_v2(waiting, word, 7, CU_STREAM_WAIT_VALUE_GEQ));
	CHECK_EQUAL(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
	spin(NULL, 1000); /* others go on */
	OK(cuStreamWriteValue32_v2(NULL, word, 9, 0));
	OK(cuStreamSynchronize(waiting));
}

static void textures_tell_what_they_were_made_of(void)
{
	CUDA_ARRAY_DESCRIPTOR shape = {64, 64, CU_AD_FORMAT_FLOAT, 2};
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY}, told;
	CUDA_TEXTURE_DESC texture = {.filterMode = CU_TR_FILTER_MODE_LINEAR}, told_texture;
	CUarray_format format;
	CUtexObject object;
	CUtexref reference;
	int channels;

	begin();
	OK(cuArrayCreate_v2(&resource.res.array.hArray, &shape));
	OK(cuTexObjectCreate(&object, &resource, &texture, NULL));
	OK(cuTexObjectGetResourceDesc(&told, object));
	CHECK(told.res.array.hArray == resource.res.array.hArray);
	OK(cuTexObjectGetTextureDesc(&told_texture, object));
	CHECK_EQUAL(told_texture.filterMode, CU_TR_FILTER_MODE_LINEAR);
	OK(cuTexObjectDestroy(object));
	FAILS(cuTexObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
	FAILS(cuModuleGetTexRef(&reference, loaded(two), "painting"), CUDA_ERROR_NOT_FOUND);
	OK(cuModuleGetTexRef(&reference, loaded(two), "picture"));
	OK(cuTexRefSetArray(reference, resource.res.array.hArray, CU_TRSA_OVERRIDE_FORMAT));
	OK(cuTexRefGetFormat(&format, &channels, reference));
	CHECK_EQUAL(format, CU_AD_FORMAT_FLOAT);
	CHECK_EQUAL(channels, 2);
}

CASES(CASE(what_is_no_image_does_not_load), CASE(a_kernel_that_is_not_in_the_image_cannot_be_had),
      CASE(a_kernels_parameters_are_told), CASE(a_modules_variables_have_a_place_and_a_size),
      CASE(what_was_linked_has_the_kernels_of_all),
      CASE(the_launch_calls_of_cuda_3_set_block_and_parameters_one_by_one),
      CASE(an_object_lives_as_long_as_a_graph_that_keeps_it),
      CASE(a_stream_waits_until_the_word_is_written), CASE(textures_tell_what_they_were_made_of));
