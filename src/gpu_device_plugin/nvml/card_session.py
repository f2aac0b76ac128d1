"""NVML for commands that change cards: who uses a card, its cut, its compute mode.

A command opens NVML in its own process; only the agent, which has to survive a driver that hangs,
asks it through a child.
"""

import ctypes
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pynvml

from gpu_device_plugin.domain.cards.nvml_reports import CardReport, Inventory
from gpu_device_plugin.errors import NvmlError
from gpu_device_plugin.nvml.child_messages import decode, driver_trouble, reports
from gpu_device_plugin.nvml.driver import Driver, error_name, open_driver
from gpu_device_plugin.nvml.driver_queries import ask, mig_handles, openers

EXCLUSIVE_PROCESS: int = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
MODE_NAMES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: "DEFAULT",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "PROHIBITED",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
}
# NVML's number of a GPU instance profile, by slices of compute and of memory.
_NUMBERS: dict[tuple[int, int], int] = {
    (1, 1): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE,
    (1, 2): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2,
    (2, 2): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
    (3, 4): pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE,
    (4, 4): pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE,
    (7, 8): pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE,
}
# The same by what its name has after the memory, and by slices of compute.
_NUMBERS_OF_KINDS: dict[tuple[str, int], int] = {
    ("+me", 1): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1,
    ("+me", 2): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1,
    ("+gfx", 1): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX,
    ("+gfx", 2): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX,
    ("+gfx", 4): pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX,
    ("+me.all", 1): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME,
    ("+me.all", 2): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME,
    ("-me", 1): pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME,
    ("-me", 2): pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME,
}
_SHARED_ENGINES = 0
_PROCESSES = 4096
_COMPUTE_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
_PROCESS_LISTS = (*_COMPUTE_LISTS, "nvmlDeviceGetGraphicsRunningProcesses")


def profile_number(compute_slices: int, memory_slices: int, kind: str) -> int:
    """NVML_GPU_INSTANCE_PROFILE_*; `kind` is what its name has after the memory, for instance `+me`."""
    if kind:
        return _NUMBERS_OF_KINDS[kind, compute_slices]
    return _NUMBERS[compute_slices, memory_slices]


@contextmanager
def session(library: str, proc: Path = Path("/proc")) -> Iterator["CardSession"]:
    """NVML opened; see `CardSession`."""
    with ExitStack() as stack:
        try:
            driver = stack.enter_context(open_driver(library or None, "/sys/module/nvidia"))
        except NvmlError as error:
            raise NvmlError(driver_trouble(str(error))) from error
        yield CardSession(driver, proc)


class CardSession:
    """The cards of the node, as they were when NVML was opened, and changes of them.

    Every method raises NvmlError, which names the card and the step.
    """

    def __init__(self, driver: Driver, proc: Path) -> None:
        for index in range(driver.count):
            driver.enumerate(index)
        (inventory,) = reports(decode(json.dumps(driver.inventory()).encode()))
        found = cast("Inventory", inventory)
        self._proc = proc
        self.cards = found.cards  # those that can be read, by NVML's index
        # For people: those that NVML counts and cannot read, as a lost one.
        self.unreadable = ", ".join(f"{each.index} ({each.error})" for each in found.unreadable)

    def require_all(self) -> None:
        if self.unreadable:
            raise NvmlError(f"NVML cannot read cards {self.unreadable}")

    def users(self, card: CardReport) -> tuple[str, ...]:
        """Processes that use a card: those that NVML lists, and those that have its device open."""
        pids = _pids(card, _PROCESS_LISTS)
        told = tuple(f"process {pid}" for pid in sorted(pids))
        return told + tuple(
            f"process {pid} ({name})"
            for pid, name in openers(card.minor, self._proc)
            if pid not in pids
        )

    def computing(self, card: CardReport) -> tuple[str, ...]:
        """Processes with a context on a card, which alone a compute mode concerns.

        Monitors and nvidia-persistenced have none, though they have its device open.
        """
        return tuple(f"process {pid}" for pid in sorted(_pids(card, _COMPUTE_LISTS)))

    def turn_mig_on(self, card: CardReport) -> None:
        """MIG mode; without it done, NVML's reason is raised, and the mode stays pending."""
        with _step(card, "turning MIG mode on"):
            status = pynvml.nvmlDeviceSetMigMode(_handle(card), pynvml.NVML_DEVICE_MIG_ENABLE)
            if status != pynvml.NVML_SUCCESS:
                raise pynvml.NVMLError(status)

    def destroy_instances(self, card: CardReport) -> None:
        """Every compute instance and GPU instance; NVML refuses one that is in use."""
        with _step(card, "destroying its MIG instances"):
            for instance in _gpu_instances(_handle(card)):
                for part in _compute_instances(instance):
                    pynvml.nvmlComputeInstanceDestroy(part)
                pynvml.nvmlGpuInstanceDestroy(instance)

    def create_instance(
        self, card: CardReport, compute_slices: int, memory_slices: int, kind: str
    ) -> None:
        """A GPU instance with one compute instance that has all of it; `kind` as `+me` in its name."""
        number = profile_number(compute_slices, memory_slices, kind)
        with _step(card, f"creating an instance of {compute_slices} compute slices"):
            handle = _handle(card)
            profile = _profile_info(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
            instance = pynvml.nvmlDeviceCreateGpuInstance(handle, profile.id)
            for part in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
                found = _part_info(instance, part)
                if found is not None and found.sliceCount == profile.sliceCount:
                    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, found.id)
                    return
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def compute_mode(self, card: CardReport) -> int:
        with _step(card, "reading its compute mode"):
            return int(pynvml.nvmlDeviceGetComputeMode(_handle(card)))

    def set_compute_mode(self, card: CardReport, mode: int) -> None:
        with _step(card, f"setting its compute mode to {MODE_NAMES[mode]}"):
            pynvml.nvmlDeviceSetComputeMode(_handle(card), mode)


@contextmanager
def _step(card: CardReport, what: str) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        name = error_name(error)
        raise NvmlError(f"card {card.index} ({card.uuid}): {what}: NVML says {name}") from error


def _pids(card: CardReport, lists: Sequence[str]) -> set[int]:
    with _step(card, "asking who uses it"):
        found = [_list_pids(name, each) for each in _places(_handle(card)) for name in lists]
    if all(each is None for each in found):
        raise NvmlError(f"card {card.index} ({card.uuid}): NVML does not tell who uses it")
    return {pid for each in found for pid in each or ()}


def _handle(card: CardReport) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(card.uuid)


def _places(handle: Any) -> Iterator[Any]:
    """The card and its MIG instances."""
    yield handle
    yield from (found for _, found in mig_handles(handle))


def _list_pids(name: str, handle: Any) -> list[int] | None:
    """Pids; None where NVML does not tell.

    pynvml knows no drivers before 510 here: the function's name and the entry's size differ.
    """
    for version, entry_bytes in (("_v3", 24), ("_v2", 24), ("", 16)):
        function = getattr(pynvml.nvmlLib, name + version, None)
        if function is None:
            continue
        room = ctypes.c_uint(_PROCESSES)
        entries = (ctypes.c_byte * (entry_bytes * _PROCESSES))()
        result = function(handle, ctypes.byref(room), entries)
        if result == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            continue
        if result == pynvml.NVML_ERROR_NOT_SUPPORTED:
            return None
        if result != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(result)
        return [
            ctypes.c_uint.from_buffer(entries, place * entry_bytes).value
            for place in range(room.value)
        ]
    return None


def _profile_info(function: Any, *arguments: Any) -> Any:
    """The second form of the structure, or the first of an older driver."""
    found = ask(function, *arguments)
    return function(*arguments, version=1) if found is None else found


def _part_info(instance: Any, number: int) -> Any:
    with suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
        return _profile_info(
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, _SHARED_ENGINES
        )
    return None


def _gpu_instances(handle: Any) -> list[Any]:
    found: list[Any] = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = _profile_info(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
        room = (pynvml.c_nvmlGpuInstance_t * max(1, info.instanceCount))()
        count = ctypes.c_uint(len(room))
        pynvml.nvmlDeviceGetGpuInstances(handle, info.id, room, ctypes.byref(count))
        found += room[: count.value]
    return found


def _compute_instances(instance: Any) -> list[Any]:
    found: list[Any] = []
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _part_info(instance, number)
        if info is None:
            continue
        room = (pynvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        count = ctypes.c_uint(len(room))
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, room, ctypes.byref(count))
        found += room[: count.value]
    return found
