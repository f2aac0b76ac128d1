"""NVML itself: the only module that imports pynvml, loaded in the child process only.

The library may lack any function that is newer than the driver. A value whose function is
missing or not supported is unknown (None); that is never a fault of the card.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pynvml

from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.driver_queries import (
    ask,
    both_ways,
    fabric,
    hardware,
    instance_uuids,
    links,
    mig_handles,
    pci_bus,
    read_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_MIB = 1024 * 1024
# Errors of the whole driver, not of one card: NVML has to be opened again.
_DRIVER = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
_NAMES = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
# A function that our simulated library has and NVIDIA's lacks: its answer differs once the node was changed.
_SIMULATED = "gpusim_generation"
_NO_ID = 0xFFFFFFFF  # an event's instance id where it names none
_PCI_DEVICES = "/sys/bus/pci/devices"


def error_name(error: pynvml.NVMLError) -> str:
    """NVML's name of an error, for instance `GPU_IS_LOST`."""
    name: str = _NAMES.get(error.value, f"ERROR_{error.value}")
    return name


class Driver:
    """An initialised NVML with the cards it showed when it was opened.

    The library enumerates cards once, at nvmlInit: a card that is plugged in later appears only
    after `close` and another opening.

    A slow card writes from a thread of its own at any moment: who walks a dictionary walks a copy.
    """

    def __init__(self, kernel_module: str | Path) -> None:
        self.is_simulated = hasattr(pynvml.nvmlLib, _SIMULATED)
        self._generation = _generation()
        self._kernel_module = kernel_module
        self._handles: dict[str, Any] = {}
        self._by_address: dict[int, str] = {}  # UUID of the card, by handles of instances too
        self._instance_at: dict[int, str] = {}
        self._links: dict[str, dict[str, list[int]]] = {}
        self.uuids: dict[int, str] = {}
        """By NVML's index, as soon as it is known."""
        self.cards: dict[int, dict[str, Any]] = {}
        self.unreadable: dict[int, dict[str, object]] = {}
        self.version = driver_version()
        self.count: int = pynvml.nvmlDeviceGetCount()
        self._events = ask(pynvml.nvmlEventSetCreate)
        self.has_events = False

    def enumerate(self, index: int) -> None:
        """Ask what NVML knows of a card, which is in `cards` or `unreadable` then.

        Its XIDs are asked for first: it may be silent for long.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = self.uuids[index] = str(pynvml.nvmlDeviceGetUUID(handle))
            self._by_address[_address(handle)] = uuid
            gives_xids = self._register(handle)
            card = {**_describe(uuid, index, handle), "gives_xids": gives_xids}
            for _, found in mig_handles(handle) if card["is_mig"] else ():
                self._by_address[_address(found)] = uuid
                self._instance_at[_address(found)] = str(pynvml.nvmlDeviceGetUUID(found))
            self._handles[uuid] = handle
            self._links[uuid] = self._read_links(uuid, handle)
            self.cards[index] = card
        except pynvml.NVMLError as error:
            if error.value in _DRIVER:
                raise
            uuid = self.uuids.get(index, "")
            self.unreadable[index] = {"index": index, "error": error_name(error), "uuid": uuid}

    def inventory(self) -> dict[str, object]:
        cuda = ask(pynvml.nvmlSystemGetCudaDriverVersion)
        return {
            "kind": "inventory",
            "driver_version": self.version,
            "cuda_version": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            "driver_load": "" if self.is_simulated else driver_load(self._kernel_module),
            "cards": [self.cards[index] for index in sorted(self.cards)],
            "unreadable": [self.unreadable[index] for index in sorted(self.unreadable)],
            "links": both_ways(dict(self._links)),
        }

    def probe(self, index: int, slices: str = "") -> dict[str, object]:
        """What the card says now, and whether it differs from what was reported (`has_changed`).

        In the directory `slices` gpu-limit-hook's marks name cgroups whose limits are read.
        """
        uuid = self.uuids[index]
        handle = self._handles[uuid]
        places = _read_marks(slices) if slices else {}
        try:
            memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)  # a lost card answers nothing
            return {
                "uuid": uuid,
                "recovery_action": _recovery_action(handle),
                "used_bytes": None if memory is None else int(memory.used),
                "limits": {name: _limits(handle, place) for name, place in places.items()},
                "has_changed": self._differs(handle, self.cards[index]["hardware"]),
            }
        except pynvml.NVMLError as error:
            if error.value in _DRIVER:
                raise
            return {"uuid": uuid, "error": error_name(error)}

    def has_changed(self) -> bool:
        """Whether it has another version than when it was opened."""
        return driver_version() != self.version

    def is_other_node(self) -> bool:
        """Whether the simulated node was changed: no PCI bus shows its cards."""
        return _generation() != self._generation

    @staticmethod
    def _differs(handle: Any, known: Mapping[str, Any]) -> bool:
        """Whether MIG mode, instances or NVLink domain differ."""
        is_mig = known["is_mig"]
        if _is_mig(handle) is not is_mig or fabric(handle) != known["fabric"]:
            return True
        before = [instance["uuid"] for instance in known["instances"]]
        return is_mig and instance_uuids(handle) != before

    def _read_links(self, uuid: str, handle: Any) -> dict[str, list[int]]:
        """Links to the cards that were asked before; none if one of them is lost, which its probe reports."""
        others = {other: found for other, found in [*self._handles.items()] if other != uuid}
        try:
            return links(handle, others)
        except pynvml.NVMLError as error:
            if error.value in _DRIVER:
                raise
            return {}

    def next_xid(self, wait_ms: int) -> tuple[str | None, int, list[str]] | None:
        """The next XID, its card, and MIG instances if it names any; None when none came in time."""
        try:
            event = pynvml.nvmlEventSetWait(self._events, wait_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        at = _address(event.device)
        uuid = self._by_address.get(at)
        if uuid is None:
            with suppress(pynvml.NVMLError):
                uuid = str(pynvml.nvmlDeviceGetUUID(event.device))
        return uuid, int(event.eventData), self._named_instances(event, uuid, at)

    def _named_instances(self, event: Any, uuid: str | None, address: int) -> list[str]:
        """By the handle of one, or by ids beside the card's handle."""
        if address in self._instance_at:
            return [self._instance_at[address]]
        cards = (card for card in [*self.cards.values()] if card["uuid"] == uuid)
        return [
            instance["uuid"]
            for card in cards
            for instance in card["hardware"]["instances"]
            if event.gpuInstanceId == instance["gpu_instance"]
            and event.computeInstanceId in {instance["compute_instance"], _NO_ID}
        ]

    def close(self) -> None:
        with suppress(pynvml.NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _register(self, handle: Any) -> bool:
        """Register for the XIDs of a card; False if it reports none. Probes find a lost one."""
        if self._events is None:
            return False
        try:
            pynvml.nvmlDeviceRegisterEvents(
                handle, pynvml.nvmlEventTypeXidCriticalError, self._events
            )
        except pynvml.NVMLError as error:
            return bool(error.value != pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.has_events = True
        return True


class _Limits(ctypes.Structure):
    """As src/nvml_memory_limits.h has it; pynvml of that driver is newer than the pinned one."""

    _fields_ = (
        ("name_space", ctypes.c_char_p),
        ("soft_bytes", ctypes.c_ulonglong),
        ("hard_bytes", ctypes.c_ulonglong),
        ("used_bytes", ctypes.c_ulonglong),
    )


def _limits(handle: Any, place: str) -> list[int]:
    """Hard limit and use of a cgroup on a card, in bytes; 2^64 - 1 where it has no limit."""
    function = getattr(pynvml.nvmlLib, "nvmlDeviceGetMemoryLimits_v1", None)
    told = _Limits(place.encode())
    if function is None or function(handle, ctypes.byref(told)) != pynvml.NVML_SUCCESS:
        return [2**64 - 1, 0]
    return [told.hard_bytes, told.used_bytes]


def _read_marks(slices: str) -> dict[str, str]:
    """Slice -> the cgroup that its mark names, which is there."""
    found: dict[str, str] = {}
    for name in _names(slices):
        mark = f"{slices}/{name}/driver-limit"
        if os.access(mark, os.F_OK):  # few have one, and every probe looks at all
            with suppress(OSError):
                place = read_text(mark).partition("\n")[0].removeprefix("cgroup=")
                if os.access(place, os.F_OK):
                    found[name] = place
    return found


def _generation() -> int:
    function = getattr(pynvml.nvmlLib, _SIMULATED, None)
    return 0 if function is None else int(function())


def driver_version() -> str:
    """The kernel driver's version."""
    return str(pynvml.nvmlSystemGetDriverVersion())


def driver_load(kernel_module: str | Path) -> str:
    """Differs after each load of the kernel module; "" without it.

    kernfs counts its nodes up, so the module's directory has another inode after a reload.
    """
    try:
        return str(os.stat(kernel_module).st_ino)  # noqa: PTH116 - no pathlib in the child
    except OSError:
        return ""


@contextmanager
def open_driver(library: str | None, kernel_module: str | Path) -> Iterator[Driver]:
    """NVML opened; raises NvmlError saying what is missing."""
    is_ready = False
    # With it NVML shows parts of cards as cards.
    os.environ.pop("NVML_MPS_DEVICE_ENUMERATION", None)
    try:
        _load(library)
        pynvml.nvmlInit()
        is_ready = True
        driver = Driver(kernel_module)
    except pynvml.NVMLError as error:
        if is_ready:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        raise NvmlError(error_name(error)) from error
    try:
        yield driver
    except pynvml.NVMLError as error:
        raise NvmlError(error_name(error)) from error
    finally:
        driver.close()


def surroundings(kernel_module: str | Path) -> tuple[object, ...]:
    """Differs when a card has come or gone, or the kernel module was loaded again.

    The load of the module, and the PCI functions of this machine (none without sysfs).
    """
    return driver_load(kernel_module), _names(_PCI_DEVICES)


def _names(directory: str) -> frozenset[str]:
    try:
        with os.scandir(directory) as entries:
            return frozenset(entry.name for entry in entries)
    except OSError:
        return frozenset()


def _load(library: str | None) -> None:
    """Make pynvml use the given file; by itself it loads the system's by name."""
    if library is None or pynvml.nvmlLib is not None:
        return
    try:
        pynvml.nvmlLib = ctypes.CDLL(library)
    except OSError as error:
        raise NvmlError(f"LIBRARY_NOT_FOUND: {error}") from error


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _describe(uuid: str, index: int, handle: Any) -> dict[str, Any]:
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    minor = ask(pynvml.nvmlDeviceGetMinorNumber, handle)
    bus_id, is_mig = pci_bus(handle), _is_mig(handle)
    return {
        "uuid": uuid,
        "index": index,
        "minor": index if minor is None else int(minor),
        "model": str(ask(pynvml.nvmlDeviceGetName, handle) or "").replace(" ", "-"),
        "memory_mib": 0 if memory is None else int(memory.total) // _MIB,
        "is_mig": is_mig,
        "hardware": {
            **hardware(handle, _pci_device(bus_id)),
            "is_mig": is_mig,
            "is_unified": memory is None and not is_mig and _is_unified(handle),
            "numa_node": _numa_node(bus_id),
        },
    }


def _is_unified(handle: Any) -> bool:
    """Whether it has no memory of its own; what is only not permitted or not known says nothing."""
    try:
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        return bool(error.value == pynvml.NVML_ERROR_NOT_SUPPORTED)
    return False


def _is_mig(handle: Any) -> bool:
    """Whether the card is in MIG mode now; a change may be pending until its next reset."""
    mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
    return bool(mode and mode[0])


def _numa_node(bus_id: str) -> int | None:
    """From sysfs."""
    try:
        node = int(read_text(f"{_pci_device(bus_id)}/numa_node"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _pci_device(bus_id: str) -> str:
    """The card's path in sysfs. NVML writes the PCI domain with eight digits, the kernel with four."""
    return f"{_PCI_DEVICES}/{bus_id.lower()[-12:]}"


def _recovery_action(handle: Any) -> int | None:
    """NVML's recovery action for the card (0: none); newer drivers only."""
    values = ask(
        pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
    )
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)
