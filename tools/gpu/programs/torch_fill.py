"""Fills the card with PyTorch until it is refused, tells every view, holds it until a line comes.

PYTORCH_CUDA_ALLOC_CONF, set by who starts this, says with which allocator.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from typing import Any

MIB = 1024 * 1024
# From 10 MiB on a tensor gets a segment of its own size; one of 1 MiB lies in a segment of 2 MiB:
# between them PyTorch itself would leave 20 MiB unused.
SIZES_MIB = (64, 16, 10, 1)


def fill(torch: Any) -> tuple[list[Any], str]:
    """The tensors, and how the last one was refused."""
    held, refusal = [], ""
    for size_mib in SIZES_MIB:
        while True:
            try:
                held.append(torch.empty(size_mib * MIB, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError as error:
                refusal = str(error).splitlines()[0]
                break
    torch.cuda.synchronize()
    return held, refusal


def nvml_view() -> dict[str, int]:
    """What pynvml tells of the card."""
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CARD_UUID"])
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"nvml_total": memory.total, "nvml_free": memory.free, "nvml_used": memory.used}


def smi_view() -> dict[str, int]:
    """What nvidia-smi tells, in whole MiB; nothing where it is missing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = ["--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(
        [program, *query, "-i", os.environ["CARD_UUID"]],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    total_mib, used_mib = (int(part) for part in said.split(","))
    return {"smi_total": total_mib * MIB, "smi_used": used_mib * MIB}


def main() -> None:
    """Fill, tell, hold."""
    torch: Any = importlib.import_module("torch")
    held, refusal = fill(torch)
    free, total = torch.cuda.mem_get_info()
    told: dict[str, object] = {
        "taken": sum(tensor.numel() for tensor in held),
        "refusal": refusal,
        "cuda_free": free,
        "cuda_total": total,
        "device_total": torch.cuda.get_device_properties(0).total_memory,
        "backend": torch.cuda.memory.get_allocator_backend(),
    }
    sys.stdout.write(json.dumps(told | nvml_view() | smi_view()) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
