"""A program that uses a GPU, as a container would run it: told line by line, JSON for an answer.

It is run as a file of its own, by `python -I`, and knows nothing of slices: plain calls of
libcuda.so.1 and libnvidia-ml.so.1, found as any program finds them.
"""

import json
import sys
from collections.abc import Callable
from ctypes import (
    CDLL,
    Structure,
    addressof,
    byref,
    c_char_p,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
)
from functools import cache

Answer = dict[str, int]
_allocated: list[c_uint64] = []
_PROCESSES = 64


class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Process(Structure):
    """NVML's nvmlProcessInfo_v1_t."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong))


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


# A module with one kernel, which the simulated card knows by its name.
_IMAGE = (
    b".version 7.0\n.target sm_50\n.address_size 64\n"
    b".visible .entry spin(.param .u64 ns) { ret; }\n"
)


@cache
def _cuda() -> CDLL:
    library = CDLL("libcuda.so.1")
    library.gpusim_now_ns.restype = c_uint64  # time on the simulated card
    return library


@cache
def _nvml() -> CDLL:
    library = CDLL("libnvidia-ml.so.1")
    _check("nvmlInit_v2", library.nvmlInit_v2())
    return library


@cache
def _kernel() -> c_void_p:
    """`spin`: occupies the card for as many nanoseconds as its parameter says."""
    module, kernel = c_void_p(), c_void_p()
    _check("cuModuleLoadData", _cuda().cuModuleLoadData(byref(module), c_char_p(_IMAGE)))
    _check("cuModuleGetFunction", _cuda().cuModuleGetFunction(byref(kernel), module, b"spin"))
    return kernel


def _check(call: str, result: int) -> None:
    if result:
        raise OSError(f"{call} returned {result}")


def start() -> Answer:
    """Start CUDA, with the primary context of the only card."""
    cuda, context = _cuda(), c_void_p()
    _check("cuInit", cuda.cuInit(0))
    _check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    _check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    return {}


def allocate(mib: str) -> Answer:
    """Ask for memory; the answer is CUDA's."""
    address = c_uint64()
    result = _cuda().cuMemAlloc_v2(byref(address), c_uint64(int(mib) << 20))
    _allocated.extend([] if result else [address])
    return {"result": result}


def free() -> Answer:
    """Give back what it got last."""
    return {"result": _cuda().cuMemFree_v2(_allocated.pop())}


def look(index: str) -> Answer:
    """What nvidia-smi would ask NVML of a card."""
    nvml, card, memory = _nvml(), c_void_p(), _Memory()
    busy, count, processes = _Utilization(), c_uint(_PROCESSES), (_Process * _PROCESSES)()
    get = nvml.nvmlDeviceGetHandleByIndex_v2
    _check("nvmlDeviceGetHandleByIndex_v2", get(c_uint(int(index)), byref(card)))
    _check("nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo(card, byref(memory)))
    _check("nvmlDeviceGetUtilizationRates", nvml.nvmlDeviceGetUtilizationRates(card, byref(busy)))
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(card, byref(count), processes)
    _check("nvmlDeviceGetComputeRunningProcesses", listed)
    return {
        "used_bytes": memory.used,
        "total_bytes": memory.total,
        "gpu_percent": busy.gpu,
        "processes": count.value,
    }


def work(piece_us: str, warm_ms: str, window_ms: str) -> Answer:
    """One kernel after another, each waited for; what was completed in the window."""
    now_ns = _cuda().gpusim_now_ns
    piece = c_uint64(int(piece_us) * 1000)
    warm_until_ns = now_ns() + int(warm_ms) * 1_000_000
    while (begun_ns := now_ns()) < warm_until_ns:
        _run_kernel(piece)
    pieces, now = 0, begun_ns
    while now < begun_ns + int(window_ms) * 1_000_000:
        _run_kernel(piece)
        pieces, now = pieces + 1, now_ns()
    return {"pieces": pieces, "took_ns": now - begun_ns}


def _run_kernel(piece: c_uint64) -> None:
    parameters = (c_void_p * 1)(addressof(piece))
    shape = (c_uint * 7)(1, 1, 1, 1, 1, 1, 0)
    result = _cuda().cuLaunchKernel(_kernel(), *shape, None, parameters, None)
    _check("cuLaunchKernel", result)
    _check("cuStreamSynchronize", _cuda().cuStreamSynchronize(None))


_WORDS: dict[str, Callable[..., Answer]] = {
    "start": start,
    "allocate": allocate,
    "free": free,
    "look": look,
    "work": work,
}


def main() -> None:
    """Execute commands until the input ends."""
    for line in sys.stdin:
        word, *arguments = line.split()
        sys.stdout.write(json.dumps(_WORDS[word](*arguments)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
