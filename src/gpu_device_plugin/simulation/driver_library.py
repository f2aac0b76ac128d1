"""The simulated node's controls, in the library that shows it.

The state file's layout lives in C only (`src/simulator/state.h`); here are calls of the
`gpusim_` functions that the simulated libnvidia-ml.so.1 exports.
"""

import ctypes
import errno
import os
from functools import cache
from pathlib import Path

from gpu_device_plugin.disk.native_library import native_library
from gpu_device_plugin.errors import ConfigError, StorageError

NVML = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
_NO_INSTANCE = 0xFFFFFFFF
_DESCRIPTION_BYTES = 4 * 1024 * 1024


def create_node(state: Path, lines: list[str]) -> None:
    """Writes a new node; a file that stands at `state` is replaced in one step."""
    _call("gpusim_create", state, "\n".join(lines).encode())


def set_fields(state: Path, lines: list[str]) -> None:
    """Changes fields of a node in use: all of them or none."""
    _call("gpusim_set", state, "\n".join(lines).encode())


def post_xid(state: Path, card: int, code: int, instance: int | None = None) -> None:
    """Reports an XID to everybody who waits for events of the card."""
    place = ctypes.c_uint32(_NO_INSTANCE if instance is None else instance)
    _call("gpusim_xid", state, ctypes.c_uint32(card), place, ctypes.c_uint64(code))


def describe(state: Path) -> dict[str, str]:
    """Every field of the node that is not zero, by name."""
    buffer = ctypes.create_string_buffer(_DESCRIPTION_BYTES)
    _call("gpusim_describe", state, buffer, ctypes.c_size_t(_DESCRIPTION_BYTES))
    lines = buffer.value.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def put_library(name: str, directory: Path, versions: dict[str, str]) -> None:
    """Copies a driver library, in one step, without the functions that came after its driver.

    It may be in use there. `versions` has `driver_version` and `cuda_version` of the node.
    """
    source, target = native_library(name), directory / name
    result = _controls().gpusim_put_library(
        str(source).encode(),
        str(target).encode(),
        versions["driver_version"].encode(),
        ctypes.c_uint(int(versions["cuda_version"])),
    )
    if result != 0:
        raise StorageError(f"cannot copy {source} to {target}: {os.strerror(-result)}")


@cache
def _controls() -> ctypes.CDLL:
    path = native_library(NVML)
    try:
        library = ctypes.CDLL(str(path))
        library.gpusim_error.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{path} is not the simulated driver: {error}") from error
    return library


def _call(function: str, state: Path, *arguments: object) -> None:
    library = _controls()
    if function != "gpusim_create" and not state.exists():
        raise ConfigError(f"no simulated node at {state}: make one with `simulate create`")
    result: int = library[function](str(state).encode(), *arguments)
    if result == 0:
        return
    reason = (library.gpusim_error() or b"").decode(errors="replace")
    if -result in (errno.EINVAL, errno.ENODEV, errno.ENOENT):
        raise ConfigError(f"simulated node: {reason}")
    raise StorageError(f"simulated node: {reason}")
