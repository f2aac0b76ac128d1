"""A card's MIG instances, links and attributes, for the inventory's message.

Imported by the child only, so it makes plain dictionaries. What a driver does not know is left out
or 0; only a lost card raises.

Calls of NVML that a driver may not know, and its values as text.

Processes that have a card's device node open: monitors do, which NVML lists nowhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pynvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
}


def ask(function: Callable[..., Any], *arguments: object) -> Any:
    """The function's answer; None if the library lacks it or does not support it."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _UNSUPPORTED:
            return None
        raise


def read_text(path: str) -> str:
    """A small file. Without pathlib, which is 0.7 MiB in the child of every node; OSError."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def text(value: bytes | str) -> str:
    """A value that pynvml gives as bytes or as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_MIB = 1024 * 1024
_ENGINES = {
    "copy": "sharedCopyEngineCount",
    "decoder": "sharedDecoderCount",
    "encoder": "sharedEncoderCount",
    "jpeg": "sharedJpegCount",
    "ofa": "sharedOfaCount",
}


def hardware(handle: Any, pci_device: str) -> dict[str, object]:
    """What `domain.cards.card.Hardware` has, without links, MIG mode and NUMA node."""
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
    return {
        "compute_capability": list(capability or (0, 0)),
        "pci_class": _pci_class(pci_device),
        "is_mig_capable": mode is not None,
        "instances": list(_instances(handle)) if mode and mode[0] else [],
        "is_virtual": ask(pynvml.nvmlDeviceGetVirtualizationMode, handle)
        == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
        "fabric": fabric(handle),
    }


def fabric(handle: Any) -> str:
    """Cluster and clique of a card in an NVLink domain that spans nodes, once the driver has joined it; or ""."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    if ask(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info)) is None:
        return ""
    is_joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and not info.status
    cluster = bytes(info.clusterUuid)
    if not is_joined or not any(cluster):
        return ""
    import uuid

    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}"


def instance_uuids(handle: Any) -> list[str]:
    """The card's MIG instances now."""
    return [str(pynvml.nvmlDeviceGetUUID(found)) for _, found in mig_handles(handle)]


def links(handle: Any, others: Mapping[str, Any]) -> dict[str, list[int]]:
    """UUID of another card -> what it has in common on the PCI bus with this one, and NVLinks.

    The first is nvmlGpuTopologyLevel_t, -1 where the driver does not tell.
    """
    found: dict[str, list[int]] = {}
    ends = list(_remote_buses(handle)) if others else []
    for uuid, other in others.items():
        level, bus = ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other), pci_bus(other)
        count = ends.count(bus) if bus else 0
        if level is not None or count:
            found[uuid] = [-1 if level is None else int(level), count]
    return found


def both_ways(links: Mapping[str, Mapping[str, list[int]]]) -> dict[str, dict[str, list[int]]]:
    """The same from each of the two cards of a link, also where the other one's are still asked for."""
    found: dict[str, dict[str, list[int]]] = {uuid: {} for uuid in links}
    for one, to in links.items():
        for other, link in to.items():
            found[one][other] = found.setdefault(other, {})[one] = link
    return found


def _instances(handle: Any) -> Iterator[dict[str, object]]:
    for index, found in mig_handles(handle):
        attributes = ask(pynvml.nvmlDeviceGetAttributes_v2, found)
        memory = ask(pynvml.nvmlDeviceGetMemoryInfo, found)
        if attributes is None:
            continue
        name = str(ask(pynvml.nvmlDeviceGetName, found) or "")
        yield {
            "uuid": str(pynvml.nvmlDeviceGetUUID(found)),
            "index": index,
            "gpu_instance": int(pynvml.nvmlDeviceGetGpuInstanceId(found)),
            "compute_instance": int(pynvml.nvmlDeviceGetComputeInstanceId(found)),
            "profile": name.partition(" MIG ")[2] or _profile(attributes),
            "memory_mib": int(attributes.memorySizeMB) if memory is None else memory.total // _MIB,
            "gpu_slices": int(attributes.gpuInstanceSliceCount),
            "compute_slices": int(attributes.computeInstanceSliceCount),
            "multiprocessors": int(attributes.multiprocessorCount),
            "engines": {name: int(getattr(attributes, field)) for name, field in _ENGINES.items()},
        }


def mig_handles(handle: Any) -> Iterator[tuple[int, Any]]:
    """Index and handle of each of the card's MIG instances."""
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            found = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        if found is not None:
            yield index, found


def _profile(attributes: Any) -> str:
    """The profile of a driver that does not name it: memory in GiB, rounded up."""
    whole, part = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    memory = f"{whole}g.{-(-int(attributes.memorySizeMB) // 1024)}gb"
    return memory if whole == part else f"{part}c.{memory}"


def pci_bus(handle: Any) -> str:
    """The card's PCI address; empty where NVML does not tell."""
    pci = ask(pynvml.nvmlDeviceGetPciInfo, handle)
    return "" if pci is None else text(pci.busId)


def _remote_buses(handle: Any) -> Iterator[str]:
    """The PCI address at the other end of each active NVLink."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if ask(pynvml.nvmlDeviceGetNvLinkState, handle, link):
                pci = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
                yield "" if pci is None else text(pci.busId)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_INVALID_ARGUMENT:  # the card has no such link
                raise
            return


def _pci_class(pci_device: str) -> int:
    """The class without its interface byte, for instance 0x0302; 0 without sysfs."""
    try:
        return int(read_text(f"{pci_device}/class"), 16) >> 8
    except (OSError, ValueError):
        return 0


OWN_COMMANDS = ("gpu_device_plugin", "gpu-device-plugin")
"""Words in the command lines of our own programs, which look at cards and compute nothing."""


def openers(minor: int, proc: Path) -> Iterator[tuple[int, str]]:
    """Pid and name of each process with `/dev/nvidia<minor>` open, but for our own.

    Processes of other pid namespaces are not in `proc`.
    """
    device = f"/dev/nvidia{minor}"
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: path.name):
        with suppress(OSError):  # it ended, or we may not look at it
            links = {str(link.readlink()) for link in (process / "fd").iterdir()}
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if device in links and not any(word in command for word in OWN_COMMANDS):
                yield int(process.name), command.split("\0")[0] or "?"
