"""numba-cuda: a kernel written in Python, compiled and launched; arrays there and back."""

import warnings

import numpy
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

warnings.simplefilter("ignore", NumbaPerformanceWarning)


@cuda.jit
def add(values, count):
    """What every first program does."""
    place = cuda.grid(1)
    if place < values.size:
        values[place] += count


values = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
stream = cuda.stream()
begin, end = cuda.event(), cuda.event()
begin.record(stream)
for _ in range(20):
    add[8, 128, stream](values, 2.0)
end.record(stream)
stream.synchronize()
print(cuda.event_elapsed_time(begin, end) > 0)
print(values.copy_to_host().sum(), cuda.gpus[0].name)
print(cuda.device_array((100, 200), dtype=numpy.int64).nbytes)
