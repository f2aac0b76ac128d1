"""pycuda: a kernel launched in three ways, memory, copies, events."""

import numpy
import pycuda.driver as cuda

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 values, .param .u32 count) { ret; }
"""

cuda.init()
card = cuda.Device(0)
print(card.name(), card.pci_bus_id(), card.compute_capability())
context = card.make_context()
try:
    values = numpy.arange(32, dtype=numpy.float32)
    there = cuda.mem_alloc(values.nbytes)
    cuda.memcpy_htod(there, values)
    module = cuda.module_from_buffer(PTX)
    add = module.get_function("add")
    stream, begin, end = cuda.Stream(), cuda.Event(), cuda.Event()
    begin.record(stream)
    add(there, numpy.int32(3), block=(32, 1, 1), grid=(1, 1), stream=stream)
    add.prepare("Pi")
    add.prepared_async_call((1, 1), (32, 1, 1), stream, there, 3)
    end.record(stream)
    stream.synchronize()
    print(begin.time_till(end) > 0)
    add._set_block_shape(32, 1, 1)
    add._param_set_size(12)
    add._launch_grid(1, 1)
    context.synchronize()
    back = numpy.empty_like(values)
    cuda.memcpy_dtoh(back, there)
    print((back == values).all())
    try:
        module.get_function("subtract")
    except cuda.LogicError as error:
        print(error)
finally:
    context.pop()
