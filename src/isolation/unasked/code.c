/*
 * Calls that may put code or heaps on the card. Nobody knows before how much,
 * so it is measured after, and until the slice has room again for the next
 * allocation that is refused.
 */
#include "books/entry.h"
#include "unasked/overhead.h"

/* Addresses leave the highest bits free. */
#define ASKED (1ull << 62)

/* Threads may share all of these. */

#define MAY_CHANGE(is_large, call)                                                                 \
	do {                                                                                       \
		struct overhead_change change;                                                     \
                                                                                                   \
		overhead_begin_change(&change, is_large);                                          \
		const CUresult result = call;                                                      \
                                                                                                   \
		overhead_end_change(&change);                                                      \
		return result;                                                                     \
	} while (0)

#define MAY_UNLOAD(call)                                                                           \
	do {                                                                                       \
		struct overhead_unload unload;                                                     \
                                                                                                   \
		overhead_begin_unload(&unload);                                                    \
		const CUresult result = call;                                                      \
                                                                                                   \
		overhead_end_unload(&unload);                                                      \
		return result;                                                                     \
	} while (0)

/*
 * The first question about a function may bring its code; the first launch is
 * looked at all the same, for what else that brings.
 */
#define MAY_BRING(function, call)                                                                  \
	do {                                                                                       \
		const void *asked = (const void *)((uintptr_t)(function) ^ ASKED);                 \
		struct overhead_launch first;                                                      \
                                                                                                   \
		overhead_begin_launch(&first, asked, NULL);                                        \
		const CUresult result = call;                                                      \
                                                                                                   \
		overhead_end_launch(&first, asked, NULL, result, 0);                               \
		return result;                                                                     \
	} while (0)

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
	ENTER(cuModuleLoad, module, fname);
	MAY_CHANGE(true, cuda.cuModuleLoad(module, fname));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER(cuModuleLoadData, module, image);
	MAY_CHANGE(true, cuda.cuModuleLoadData(module, image));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
			    CUjit_option *options, void **optionValues)
{
	ENTER(cuModuleLoadDataEx, module, image, numOptions, options, optionValues);
	MAY_CHANGE(true, cuda.cuModuleLoadDataEx(module, image, numOptions, options, optionValues));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	ENTER(cuModuleLoadFatBinary, module, fatCubin);
	MAY_CHANGE(true, cuda.cuModuleLoadFatBinary(module, fatCubin));
}

CUresult cuModuleUnload(CUmodule hmod)
{
	ENTER(cuModuleUnload, hmod);
	overhead_forget_launches();
	MAY_UNLOAD(cuda.cuModuleUnload(hmod));
}

/* With lazy loading the code comes when a function is first asked for. */
CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	ENTER(cuModuleGetFunction, hfunc, hmod, name);
	MAY_CHANGE(false, cuda.cuModuleGetFunction(hfunc, hmod, name));
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
			   void **jitOptionsValues, unsigned int numJitOptions,
			   CUlibraryOption *libraryOptions, void **libraryOptionValues,
			   unsigned int numLibraryOptions)
{
	ENTER(cuLibraryLoadData, library, code, jitOptions, jitOptionsValues, numJitOptions,
	      libraryOptions, libraryOptionValues, numLibraryOptions);
	MAY_CHANGE(true, cuda.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues,
						numJitOptions, libraryOptions, libraryOptionValues,
						numLibraryOptions));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
			       void **jitOptionsValues, unsigned int numJitOptions,
			       CUlibraryOption *libraryOptions, void **libraryOptionValues,
			       unsigned int numLibraryOptions)
{
	ENTER(cuLibraryLoadFromFile, library, fileName, jitOptions, jitOptionsValues, numJitOptions,
	      libraryOptions, libraryOptionValues, numLibraryOptions);
	MAY_CHANGE(true, cuda.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues,
						    numJitOptions, libraryOptions,
						    libraryOptionValues, numLibraryOptions));
}

CUresult cuLibraryUnload(CUlibrary library)
{
	ENTER(cuLibraryUnload, library);
	overhead_forget_launches();
	MAY_UNLOAD(cuda.cuLibraryUnload(library));
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	ENTER(cuKernelGetFunction, pFunc, kernel);
	MAY_CHANGE(false, cuda.cuKernelGetFunction(pFunc, kernel));
}

CUresult cuFuncLoad(CUfunction function)
{
	ENTER(cuFuncLoad, function);
	MAY_CHANGE(false, cuda.cuFuncLoad(function));
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	ENTER(cuLibraryGetModule, pMod, library);
	MAY_CHANGE(true, cuda.cuLibraryGetModule(pMod, library));
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
	ENTER(cuFuncGetAttribute, pi, attrib, hfunc);
	MAY_BRING(hfunc, cuda.cuFuncGetAttribute(pi, attrib, hfunc));
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
	ENTER(cuFuncSetAttribute, hfunc, attrib, value);
	MAY_BRING(hfunc, cuda.cuFuncSetAttribute(hfunc, attrib, value));
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
	ENTER(cuKernelGetAttribute, pi, attrib, kernel, dev);
	MAY_BRING(kernel, cuda.cuKernelGetAttribute(pi, attrib, kernel, dev));
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
	ENTER(cuKernelSetAttribute, attrib, val, kernel, dev);
	MAY_BRING(kernel, cuda.cuKernelSetAttribute(attrib, val, kernel, dev));
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
						     size_t dynamicSMemSize)
{
	ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor, numBlocks, func, blockSize,
	      dynamicSMemSize);
	MAY_BRING(func, cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize,
									 dynamicSMemSize));
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func,
							      int blockSize, size_t dynamicSMemSize,
							      unsigned int flags)
{
	ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, numBlocks, func, blockSize,
	      dynamicSMemSize, flags);
	MAY_BRING(func, cuda.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
				numBlocks, func, blockSize, dynamicSMemSize, flags));
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
					  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
					  size_t dynamicSMemSize, int blockSizeLimit)
{
	ENTER(cuOccupancyMaxPotentialBlockSize, minGridSize, blockSize, func,
	      blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit);
	MAY_BRING(func, cuda.cuOccupancyMaxPotentialBlockSize(minGridSize, blockSize, func,
							      blockSizeToDynamicSMemSize,
							      dynamicSMemSize, blockSizeLimit));
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize,
						   CUfunction func,
						   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
						   size_t dynamicSMemSize, int blockSizeLimit,
						   unsigned int flags)
{
	ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags, minGridSize, blockSize, func,
	      blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, flags);
	MAY_BRING(func, cuda.cuOccupancyMaxPotentialBlockSizeWithFlags(
				minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
				dynamicSMemSize, blockSizeLimit, flags));
}

/* Stack, printf and malloc heaps. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	ENTER(cuCtxSetLimit, limit, value);
	MAY_UNLOAD(cuda.cuCtxSetLimit(limit, value));
}
