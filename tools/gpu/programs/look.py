"""Looks for cards through NVML and prints one JSON object; only reads, changes nothing.

A process of its own: what NVML does to a process, or a driver that hangs, is not the asker's.
"""

import ctypes
import json
import sys
from typing import Any


def card(pynvml: Any, index: int) -> dict[str, object]:
    """What is asked of one card."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        has_mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except pynvml.NVMLError:
        has_mig = False
    return {
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "total": memory.total,
        "free": memory.free,
        "used": memory.used,
        "has_mig": has_mig,
        "is_exclusive": pynvml.nvmlDeviceGetComputeMode(handle) != pynvml.NVML_COMPUTEMODE_DEFAULT,
        "pids": {
            found.pid: found.usedGpuMemory or 0
            for found in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        },
    }


def look() -> dict[str, object]:
    """The driver and its cards, or why there are none."""
    try:
        import pynvml
    except ImportError as error:
        return {"unable": f"{sys.executable} cannot import pynvml: {error}"}
    try:
        pynvml.nvmlInit()
        library = ctypes.CDLL("libnvidia-ml.so.1")
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        count = pynvml.nvmlDeviceGetCount()
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "is_simulated": hasattr(library, "gpusim_create"),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "cards": [card(pynvml, index) for index in range(count)],
        }
    except pynvml.NVMLError as error:
        return {"none": f"NVML: {error}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()) + "\n")
