/*
 * Calls that may put code or heaps on the card. Nobody knows before how much,
 * so it is measured after, and until the slice has room again for the next
 * allocation that is refused.
 */
#include "entry.h"
#include "overhead.h"

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

/* Stack, printf and malloc heaps. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	ENTER(cuCtxSetLimit, limit, value);
	MAY_UNLOAD(cuda.cuCtxSetLimit(limit, value));
}
