"""Checks of the node, every few seconds; the table of them is `agent/check_table`.

R-722: images with CUDA set NVIDIA_VISIBLE_DEVICES=all. If the NVIDIA runtime is the node's default
and accepts that variable from unprivileged containers, each of them sees all cards. The runtime's
settings cannot be read from here. But the agent is such a container itself: it is unprivileged,
asks for no GPU, and sets the variable. If the default runtime gave it the driver's device nodes,
it gives them to every such container.

NVIDIA's driver as the enforcer of memory: the agent may set no limit. The limit keeper does
(`gpu-device-plugin limit-keeper`), asked for slices by their ids; it takes size and cgroup from the
files of the slice and from the processes that have these mounted.
"""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar

from gpu_device_plugin.agent.card_watch.card_inventory import CardInventory
from gpu_device_plugin.agent.node_checks.admin_socket import ask
from gpu_device_plugin.agent.state.event_recorder import EventRecorder
from gpu_device_plugin.agent.state.node_store import NodeStore
from gpu_device_plugin.disk.disk_thread import Writer
from gpu_device_plugin.disk.mounts import has_own_file_system
from gpu_device_plugin.disk.selinux import SecurityLabels
from gpu_device_plugin.disk.slice_files import SliceFiles
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.memory_enforcer import (
    DriverLimits,
    EnforcerChoice,
    MemoryEnforcer,
    read_report,
    unmet_choice,
    unproven,
)
from gpu_device_plugin.domain.scheme_registry import Schemes
from gpu_device_plugin.errors import ConfigError, EdgeError, NodeError, StorageError

CHECK_SECONDS = 5.0
LOST_DEVICES = "devices-denied"
"""File in the run directory: an agent's container has lost its devices, and no later one has reported the end."""
OLDEST_KUBELET = (1, 34)
_EXPOSED = (
    "containers that ask for no GPU see every card of this node if their image sets "
    "NVIDIA_VISIBLE_DEVICES=all, as images with CUDA do. The NVIDIA runtime is the default here and "
    "accepts the variable from unprivileged containers: this agent got the cards in this way"
)
_DEVICES_DENIED = (
    "the agent's container may no longer open {}: its device rules were set again without the devices that NVIDIA's hook "
    "had added, as systemctl daemon-reload does. The node still serves, but the agent cannot open NVML again. Containers "
    "that had cards from the hook at that time have probably lost them too; those started since have not"
)
_RUN_DIR_SHARED = (
    "the run directory has no file system of its own: a container that enlarges its files can fill "
    "that of the node for a moment, as far as its own memory limit goes"
)
_SYS_ADMIN = 21
# As the chart sets it; or what the runtime replaces it with when it uses CDI.
_FOLLOWED = ("all", "void")


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

    node_store: NodeStore
    recorder: EventRecorder
    work: Sequence[Callable[[], None]]
    checks: Sequence[Check[str | None]]
    disk_work: Sequence[Callable[[], Awaitable[None]]]
    disk_checks: Sequence[Check[Awaitable[str | None]]]

    def __post_init__(self) -> None:
        self.has_checked = asyncio.Event()  # set when each has run once
        self._reported = {each.reason: "" for each in self.checks if each.was_reported}

    async def run(self) -> None:
        """Check until cancelled."""
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
            self.recorder.fault(self.node_store, check.reason, text)
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


@dataclass(frozen=True, slots=True)
class Exposure:
    """What the agent sees of its own container."""

    environ: Mapping[str, str]
    devices: Path = Path("/dev")
    """`/dev`, into which nothing but a container runtime puts the driver's nodes."""
    status: Path = Path("/proc/self/status")

    def find(self, runtime_class: str | None) -> str | None:
        """That containers which ask for no GPU see every card."""
        return _EXPOSED if self.is_proven(runtime_class) else None

    def is_proven(self, runtime_class: str | None) -> bool:
        """Whether the agent's own container proves it.

        `runtime_class` is that of the agent's own pod, empty for the default runtime; None outside
        a pod, or where the pod is not known yet.
        """
        return (
            runtime_class == ""
            and self.environ.get("NVIDIA_VISIBLE_DEVICES") in _FOLLOWED
            and (self.devices / "nvidiactl").exists()
            and not self._is_privileged()
        )

    def _is_privileged(self) -> bool:
        """For the runtime a container that may have SYS_ADMIN is privileged and gets everything."""
        try:
            lines = self.status.read_text(encoding="ascii").splitlines()
            bounds = next(line for line in lines if line.startswith("CapBnd:"))
            return bool(int(bounds.split()[1], 16) >> _SYS_ADMIN & 1)
        except (OSError, StopIteration, ValueError):
            return True  # nothing is proven


@dataclass(eq=False)
class LostDevices:
    """What the agent's container has lost, which only a new container gives back.

    `mark` is a file that stays until the next agent, so that it reports the end.
    """

    mark: Path
    node: Path = Path("/dev/nvidiactl")

    def __post_init__(self) -> None:
        self._could_open = self.was_lost = self.mark.exists()

    def find(self) -> str | None:
        """That the device cgroup denies what it allowed: access(2) asks it without calling the driver, which may hang."""
        may_open = os.access(self.node, os.R_OK | os.W_OK)
        self._could_open |= may_open
        is_denied = self._could_open and not may_open and self.node.exists()
        with suppress(OSError):  # where the run directory is full, only the end is not reported
            if is_denied:
                self.mark.touch()
            else:
                self.mark.unlink(missing_ok=True)
        return _DEVICES_DENIED.format(self.node) if is_denied else None


@dataclass(eq=False)
class LayoutCheck:
    """The node's devices must fit what it is to offer; what is left out or waits is reported once."""

    schemes: Schemes
    node_store: NodeStore
    recorder: EventRecorder
    on_waited: Callable[[], None]
    _left_out: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """For each card that waits for its pods, what it waits for."""

    def run(self) -> None:
        found = self.schemes.layout(self.node_store.read())
        self.recorder.fault(self.node_store, "LayoutNotServed", found.problem or None)
        self._report_new("DeviceLeftOut", found.left_out, self._left_out)
        self._report_new("ConfigurationWaits", found.waiting, self.waiting)
        self._left_out = found.left_out
        if found.waiting != self.waiting:
            self.waiting = found.waiting
            self.on_waited()

    def _report_new(self, reason: str, texts: Sequence[str], before: Sequence[str]) -> None:
        for text in texts:
            if text not in before:
                self.recorder.node_note(reason, text)


KEEPER_SOCKET = "limits.sock"
PROBE_SECONDS = 60.0
SET, NONE, UNDER_WAY = "set", "none", "under way"
"""The keeper's answers: the limit was set (again); no container of the slice runs; ask again."""
_HELD = "held"
_HIDDEN = (
    "its container runs without its limit, which cannot be set again: no process of the container that has the "
    "slice's directory mounted was found. Restart the pod"
)
_NO_HOOK = (
    "a container started without the limit of its CDI device, and got it afterwards. Check that CDI is on in the "
    "container runtime and, with --driver-limit-by toolkit, that NVIDIA's toolkit is 1.20.1 or later"
)


@dataclass(eq=False)
class DriverLimitsCheck:
    """Follows the probe's report, and has limits set again. `cdi_trouble` says why no CDI file can be written."""

    node_store: NodeStore
    recorder: EventRecorder
    cards: CardInventory
    files: SliceFiles
    ledger: Callable[[], Ledger]
    socket: Path
    cdi_trouble: Callable[[], str]

    def __post_init__(self) -> None:
        self._proof = DriverLimits()  # what the probe said, by the last `follow`
        self._probed: tuple[object, ...] = ()
        self._probed_at = float("-inf")
        self._told: Mapping[str, str] = {}

    def follow(self) -> str | None:
        """Publish what is proved; why the node cannot do what the operator wants, or None."""
        limits = read_report(self.files.driver_report(), self.cards.driver_version)
        self._proof = limits
        if limits.backends:
            hook = _NO_HOOK if self.files.is_hook_unseen() else ""
            trouble = self.cdi_trouble() or hook
            limits = DriverLimits(missing=trouble) if trouble else limits
        self.node_store.update(driver_limits=limits)
        state = self.node_store.read()
        cards = [card.uuid for card in state.cards]
        return unmet_choice(state.memory_choice, limits, cards) if state.isolates else None

    async def repair(self) -> None:
        """Have the probe repeated where that is due, and each lost limit of a running container set again."""
        if self._needs_probe():
            self._probed, self._probed_at = self.cards.driver_load, _now()
            await self._ask("probe")
        grants = self.ledger().grants.values()
        by_driver = (g for g in grants if g.memory_enforcer is MemoryEnforcer.DRIVER)
        lost = {g.slice_id: g for g in by_driver if self._is_to_ask(g)}
        told = await self._ask("limit", *lost) if lost else {}
        # Only those whose cgroup is there are known to run.
        running = frozenset().union(*self.cards.memory_limits.values()) & lost.keys()
        if told is None:
            told = dict.fromkeys(running, f"no limit keeper answers on {self.socket}")
        elif hidden := [name for name in running if told.get(name) == NONE]:
            told = {**told, **dict.fromkeys(hidden, _HIDDEN)}
        for slice_id in lost.keys() & told.keys():
            self._report(lost[slice_id], told[slice_id])
        self._told = told

    def _needs_probe(self) -> bool:
        state = self.node_store.read()
        if state.memory_choice is EnforcerChoice.LIBRARY or not self.cards.driver_load:
            return False
        proof = self._proof
        is_missing = any(
            unproven(proof, [c.uuid]) and c.uuid not in proof.reasons for c in state.cards
        )
        is_new = self.cards.driver_load != self._probed
        return is_new or (is_missing and _now() - self._probed_at >= PROBE_SECONDS)

    def _is_to_ask(self, grant: Grant) -> bool:
        return self._told.get(grant.slice_id) == UNDER_WAY or not self._is_held(grant)

    def _is_held(self, grant: Grant) -> bool:
        """Whether the driver has a limit of each of its cards, by the last probe of the cards."""
        card = self.node_store.read().card
        for share in grant.shares:
            found = self.cards.memory_limits.get(share.device, {}).get(grant.slice_id)
            size, whole = share.memory_bytes or 0, card(share.device)
            is_whole = whole is not None and size >> 20 >= whole.memory_mib
            if found is None or (found.limit_bytes > size and not is_whole):
                return False
        return True

    async def _ask(self, command: str, *slices: str) -> Mapping[str, str] | None:
        """What the keeper says, by slice; None where none answers."""
        try:
            told = json.loads(await ask(self.socket, {"command": command, "slices": slices}))
        except (EdgeError, ValueError):
            return None
        return told if isinstance(told, dict) else None

    def _report(self, grant: Grant, told: str) -> None:
        if told == SET:
            self.recorder.limit_set(grant)
        elif told not in (_HELD, NONE, UNDER_WAY, self._told.get(grant.slice_id)):
            self.recorder.slice_broken(grant, NodeError(told, reason="DriverLimitLost"))


def _now() -> float:
    return asyncio.get_running_loop().time()
