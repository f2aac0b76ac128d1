"""Checks of the node, every few seconds; the table of them is `agent/check_table`."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.mounts import has_own_file_system
from gpu_device_plugin.disk.selinux import SecurityLabels
from gpu_device_plugin.domain.node.labels import UPGRADE_STATE_LABEL
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import ConfigError, StorageError

CHECK_SECONDS = 5.0
OLDEST_KUBELET = (1, 34)
_RUN_DIR_SHARED = (
    "the run directory has no file system of its own: a container that enlarges its files can fill "
    "that of the node for a moment, as far as its own memory limit goes"
)


_Found = TypeVar("_Found", covariant=True)


class Severity(Enum):
    """What a finding means; each is reported when it begins and when it is over."""

    FAULT = "the node does not serve until it is over"
    WARNING = "an Event"
    INFORMATION = "an Event of type Normal"


@dataclass(frozen=True, slots=True)
class Check(Generic[_Found]):
    """One row of the table.

    Attributes:
        reason: Of what it finds.
        find: Says what is wrong now; None if nothing is. One that may wait for a disk is awaited.
        cure: What a person does about it; empty where the finding itself says it.
        was_reported: Whether an earlier run of the agent reported it, and not that it is over.
    """

    reason: str
    find: Callable[[], _Found]
    cure: str = ""
    severity: Severity = Severity.FAULT
    was_reported: bool = False


@dataclass(eq=False)
class NodeChecks:
    """Runs work and checks in order, again and again; what waits for a disk holds up nothing else."""

    recorder: EventRecorder
    work: Sequence[Callable[[], None]]
    checks: Sequence[Check[str | None]]
    disk_work: Sequence[Callable[[], Awaitable[None]]]
    disk_checks: Sequence[Check[Awaitable[str | None]]]

    def __post_init__(self) -> None:
        self.has_checked = asyncio.Event()  # set when each has run once
        self._reported = {each.reason: "" for each in self.checks if each.was_reported}

    async def run(self) -> None:
        await asyncio.gather(self._run_checks(), self._run_disk_checks())

    def look(self) -> None:
        """Run once what waits for no disk."""
        for work in self.work:
            work()
        for check in self.checks:
            self._report(check, check.find())

    async def _run_checks(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(CHECK_SECONDS)

    async def _run_disk_checks(self) -> None:
        while True:
            for work in self.disk_work:
                await work()
            for check in self.disk_checks:
                self._report(check, await check.find())
            self.has_checked.set()
            await asyncio.sleep(CHECK_SECONDS)

    def _report(
        self, check: Check[str | None] | Check[Awaitable[str | None]], text: str | None
    ) -> None:
        if text and check.cure:
            text = f"{text}. Cure: {check.cure}"
        if check.severity is Severity.FAULT:
            self.recorder.fault(check.reason, text)
            return
        before = self._reported.pop(check.reason, None)
        if text:
            self._reported[check.reason] = text
        if text and text != before:
            is_warning = check.severity is Severity.WARNING
            self.recorder.node_note(check.reason, text, is_warning=is_warning)
        elif before is not None and not text:
            self.recorder.node_over(check.reason)


def find_shared_run_dir(run_dir: Path) -> str | None:
    """That the files of slices have no file system of their own."""
    return None if has_own_file_system(run_dir) else _RUN_DIR_SHARED


def find_long_list(schemes: Schemes, node_store: NodeStore) -> str | None:
    """That the kubelet could not receive a device list of this node."""
    try:
        schemes.check_size(node_store.read())
    except ConfigError as error:
        return str(error)
    return None


async def find_unreadable(
    labels: SecurityLabels, writer: Writer, node_store: NodeStore
) -> str | None:
    """The trouble with SELinux labels of our directories, which containers must be allowed to read where slices are enforced."""
    try:
        if node_store.read().isolates:
            await writer.run(labels.ensure)
    except StorageError as error:
        return str(error)
    return None


def find_old_kubelet(kubelet_version: str) -> str | None:
    """That a kubelet is older than any that is supported: it may be, by three minor versions.

    None where it is not, or its version is not known.
    """
    numbers = re.match(r"v(\d+)\.(\d+)\.", kubelet_version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST_KUBELET:
        return None
    oldest = ".".join(map(str, OLDEST_KUBELET))
    return (
        f"the kubelet of this node is {kubelet_version}; kubelets before {oldest} list finished pods "
        f"and have no PodResources Get, so the agent notices fewer mistakes"
    )


def find_driver_upgrade(labels: Mapping[str, str]) -> str | None:
    """That NVIDIA's operator changes the driver of a node with these labels, and how far it is."""
    state = labels.get(UPGRADE_STATE_LABEL, "")
    if state in ("", "upgrade-done"):
        return None
    return f"the GPU operator changes this node's driver: {UPGRADE_STATE_LABEL}={state}"


@dataclass(eq=False)
class LayoutCheck:
    """The node's devices must fit what it is to offer; what is left out or waits is reported once."""

    schemes: Schemes
    node_store: NodeStore
    recorder: EventRecorder
    _left_out: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """For each card that waits for its pods, what it waits for."""

    def run(self) -> None:
        found = self.schemes.layout(self.node_store.read())
        self.recorder.fault("LayoutNotServed", found.problem or None)
        self._report_new("DeviceLeftOut", found.left_out, self._left_out)
        self._report_new("ConfigurationWaits", found.waiting, self.waiting)
        self._left_out, self.waiting = found.left_out, found.waiting

    def _report_new(self, reason: str, texts: Sequence[str], before: Sequence[str]) -> None:
        for text in texts:
            if text not in before:
                self.recorder.node_note(reason, text)
