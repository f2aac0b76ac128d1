"""cuda-bindings: a kernel from source to its end, memory, copies, times."""

import numpy
from cuda.bindings import driver, nvrtc

SOURCE = (
    b'extern "C" __global__ void add(float *values, int count) { values[threadIdx.x] += count; }'
)


def done(answer):
    """What a call gives beside its result, which has to be success."""
    result, *values = answer
    assert int(result) == 0, result
    return values[0] if len(values) == 1 else values


def compiled(kind):
    """The source as a cubin or as PTX."""
    program = done(nvrtc.nvrtcCreateProgram(SOURCE, b"add.cu", 0, [], []))
    done(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"]))
    size = done(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
    image = b" " * size
    done(getattr(nvrtc, f"nvrtcGet{kind}")(program, image))
    return image


done(driver.cuInit(0))
card = done(driver.cuDeviceGet(0))
print(done(driver.cuDeviceGetName(32, card)), done(driver.cuDriverGetVersion()))
context = done(driver.cuDevicePrimaryCtxRetain(card))
done(driver.cuCtxSetCurrent(context))

values = numpy.arange(32, dtype=numpy.float32)
back = numpy.zeros_like(values)
address = done(driver.cuMemAlloc(values.nbytes))
done(driver.cuMemcpyHtoD(address, values, values.nbytes))
stream = done(driver.cuStreamCreate(0))
for kind in ("CUBIN", "PTX"):
    module = done(driver.cuModuleLoadData(compiled(kind)))
    kernel = done(driver.cuModuleGetFunction(module, b"add"))
    print(kind, done(driver.cuModuleGetFunctionCount(module)))
    print(int(driver.cuModuleGetFunction(module, b"subtract")[0]))
    begin, end = (done(driver.cuEventCreate(0)) for _ in range(2))
    done(driver.cuEventRecord(begin, stream))
    pointer = numpy.array([int(address)], dtype=numpy.uint64)
    count = numpy.array([3], dtype=numpy.int32)
    packed = numpy.array([pointer.ctypes.data, count.ctypes.data], dtype=numpy.uint64)
    done(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, packed.ctypes.data, 0))
    done(driver.cuEventRecord(end, stream))
    done(driver.cuStreamSynchronize(stream))
    print(done(driver.cuEventElapsedTime(begin, end)) > 0)
    done(driver.cuModuleUnload(module))
print(int(driver.cuModuleLoadData(b"junk")[0]))
done(driver.cuMemcpyDtoH(back, address, back.nbytes))
print(back.tolist() == values.tolist())
done(driver.cuMemFree(address))
done(driver.cuDevicePrimaryCtxRelease(card))
