"""Asks NVIDIA's driver (615 and later) for a cgroup's memory limits on a card, and sets them where two are given.

limit.py UUID DIRECTORY [SOFT HARD]     bytes; 2^64 - 1 is none

Prints one JSON object: NVML's code of each call (-1: the driver does not have it), and what it told. pynvml of
that driver is newer than ours, so the call is made by hand.
"""

import ctypes
import json
import sys

LIMITS = ctypes.c_ulonglong * 3


class Told(ctypes.Structure):
    """Both calls take the first three fields."""

    _fields_ = (("name_space", ctypes.c_char_p), ("values", LIMITS))


def main() -> None:
    """Set first, then get."""
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].encode(), ctypes.byref(device))
    told: dict[str, int] = {}
    for name, values in (("Set", sys.argv[3:]), ("Get", ["0", "0"])):
        if values:
            limits = Told(sys.argv[2].encode(), LIMITS(*map(int, values), 0))
            call = getattr(nvml, f"nvmlDevice{name}MemoryLimits_v1", None)
            told[name.lower()] = -1 if call is None else call(device, ctypes.byref(limits))
            told |= dict(zip(("soft", "hard", "used"), limits.values, strict=True))
    nvml.nvmlShutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
