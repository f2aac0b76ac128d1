"""Checks of the node, every few seconds: state directory, library, labels, disk, device lists."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gpu_device_plugin.apps.agent.events.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.inventory.cards import CardInventory
from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.lifecycle import exposure
from gpu_device_plugin.apps.agent.lifecycle.exposure import Exposure
from gpu_device_plugin.apps.agent.publish.cluster import Cluster
from gpu_device_plugin.apps.agent.slices.library import MISSING, LibraryInstaller
from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.schemes.registry import Schemes
from gpu_device_plugin.errors import ConfigError, StorageError

CHECK_SECONDS = 2.0
OLDEST_KUBELET = (1, 34)


class Check(Protocol):
    """One check; what it finds becomes a fault of the node, or ends one."""

    def run(self) -> None:
        """Check once, without waiting for anything."""
        ...


class DiskBoundCheck(Protocol):
    """One that may wait, for a disk or for an answer."""

    async def run(self) -> None:
        """Check once, without holding up the event loop."""
        ...


class NodeChecks:
    """Runs the checks in order, again and again; those that wait for a disk hold up no other.

    Attributes:
        has_checked: Set when each has run once.
    """

    def __init__(self, checks: Sequence[Check], disk_checks: Sequence[DiskBoundCheck]) -> None:
        self.has_checked = asyncio.Event()
        self._checks = tuple(checks)
        self._disk_checks = tuple(disk_checks)

    async def run(self) -> None:
        """Check until cancelled."""
        await asyncio.gather(self._run_checks(), self._run_disk_checks())

    async def _run_checks(self) -> None:
        while True:
            self._run_each()
            await asyncio.sleep(CHECK_SECONDS)

    async def _run_disk_checks(self) -> None:
        while True:
            for check in self._disk_checks:
                await check.run()
            self.has_checked.set()
            await asyncio.sleep(CHECK_SECONDS)

    def _run_each(self) -> None:
        for check in self._checks:
            check.run()


class CallCheck:
    """A check that is one call of another part."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def run(self) -> None:
        """Make the call."""
        self._call()


class LibraryCheck:
    """The isolation library is on the node wherever slices are enforced."""

    def __init__(
        self, library: LibraryInstaller, node_store: NodeStore, recorder: EventRecorder
    ) -> None:
        self._library = library
        self._node_store = node_store
        self._recorder = recorder
        self._mode = node_store.read().mode
        self._problem = ""
        node_store.subscribe(self._state_changed)

    async def run(self) -> None:
        """Install what we bring, and publish the version that new containers get."""
        if self._is_due(self._node_store.read()):
            version, self._problem = await self._library.check()
            self._node_store.update(library_version=version)
            self._judge()

    def leave(self, *, is_leaving: bool) -> None:
        """Install nothing any more, or (False) as ever, from the next check on."""
        self._library.leave(is_leaving=is_leaving)

    def _state_changed(self, state: NodeState) -> None:
        """Check again before another mode is offered, which may need the library."""
        if state.mode is not self._mode:
            self._mode = state.mode
            self._judge()

    def _judge(self) -> None:
        state = self._node_store.read()
        if self._is_due(state):
            text = self._problem if self._problem and state.isolates else None
            self._recorder.fault(self._node_store, MISSING, text)

    @staticmethod
    def _is_due(state: NodeState) -> bool:
        return state.wants_isolation and not state.mark


class SecurityLabelCheck:
    """Where slices are enforced, containers must be allowed to read our directories."""

    def __init__(
        self,
        ensure: Callable[[], Awaitable[object]],
        node_store: NodeStore,
        recorder: EventRecorder,
    ) -> None:
        self._ensure = ensure
        self._node_store = node_store
        self._recorder = recorder

    async def run(self) -> None:
        """Give the label to what does not have it."""
        problem = None
        if self._node_store.read().isolates:
            try:
                await self._ensure()
            except StorageError as error:
                problem = str(error)
        self._recorder.fault(self._node_store, "LabelsMissing", problem)


class ExposureCheck:
    """Reports exposed cards once per run: the setting changes only when the runtime restarts."""

    def __init__(self, exposed: Exposure, cluster: Cluster, recorder: EventRecorder) -> None:
        self._exposed: Exposure | None = exposed
        self._cluster = cluster
        self._recorder = recorder

    def run(self) -> None:
        """Report that containers see cards that they did not ask for."""
        if self._exposed is not None and self._exposed.is_proven(self._cluster.runtime_class):
            self._recorder.node_note("CardsExposed", exposure.TEXT)
            self._exposed = None


class KubeletCheck:
    """Reported once a run: a kubelet may be up to three minor versions older than its API server."""

    def __init__(self, cluster: Cluster, recorder: EventRecorder) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._is_reported = False

    def run(self) -> None:
        """Report that the kubelet is older than any that is supported."""
        version = self._cluster.node.kubelet_version if self._cluster.node else ""
        if not self._is_reported and is_too_old(version):
            self._is_reported = True
            oldest = ".".join(map(str, OLDEST_KUBELET))
            self._recorder.node_note(
                "KubeletTooOld",
                f"the kubelet of this node is {version}; kubelets before {oldest} list finished pods "
                f"and have no PodResources Get, so fewer mistakes are noticed: upgrade the node",
            )


def is_too_old(kubelet_version: str) -> bool:
    """Whether a kubelet is older than any that is supported; False where that is not known."""
    numbers = re.match(r"v(\d+)\.(\d+)\.", kubelet_version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST_KUBELET


class StateDirectoryCheck:
    """If the lock file is gone, so are the others; an error here ends the process.

    In a pod the directory is a mount. If it is removed on the node, no file can be written there
    until the container is created again.
    """

    def __init__(
        self,
        keep_lock: Callable[[], Awaitable[bool]],
        state_dir: str,
        recorder: EventRecorder,
        ledger_store: LedgerStore,
        remember: Sequence[CardInventory | ModeFollower],
    ) -> None:
        self._keep_lock = keep_lock
        self._state_dir = state_dir
        self._recorder = recorder
        self._ledger_store = ledger_store
        self._remember = remember

    async def run(self) -> None:
        """Write everything again if the directory was emptied."""
        if await self._keep_lock():
            text = f"{self._state_dir}: was emptied while the agent ran; the agent writes it again"
            self._recorder.file_set_aside(text)
            self._ledger_store.rewrite()
            for part in self._remember:
                part.settle()


class DiskCheck:
    """Tries a disk that refused a grant again, until a write succeeds."""

    def __init__(
        self, ledger_store: LedgerStore, node_store: NodeStore, recorder: EventRecorder
    ) -> None:
        self._ledger_store = ledger_store
        self._node_store = node_store
        self._recorder = recorder

    def run(self) -> None:
        """Try it."""
        if self._ledger_store.disk_fault is not None:
            self._ledger_store.rewrite()
        fault = self._ledger_store.disk_fault
        self._recorder.fault(self._node_store, "StateNotWritable", fault)


class DeviceListCheck:
    """The kubelet must be able to receive the device lists of this node."""

    def __init__(self, schemes: Schemes, node_store: NodeStore, recorder: EventRecorder) -> None:
        self._schemes = schemes
        self._node_store = node_store
        self._recorder = recorder

    def run(self) -> None:
        """Count the bytes."""
        problem = None
        try:
            schemes, state = self._schemes, self._node_store.read()
            for scheme, view in schemes.views(schemes.deciders, state):
                scheme.check_size(view)
        except ConfigError as error:
            problem = str(error)
        self._recorder.fault(self._node_store, "DeviceListTooLong", problem)


class LayoutCheck:
    """The node's devices must fit what it is to offer; what is left out or waits is reported once."""

    def __init__(
        self,
        schemes: Schemes,
        node_store: NodeStore,
        recorder: EventRecorder,
        on_waited: Callable[[], None],
    ) -> None:
        self._schemes = schemes
        self._node_store = node_store
        self._recorder = recorder
        self._on_waited = on_waited
        self._reported: tuple[str, ...] = ()
        self._waiting: tuple[str, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether a card waits for its pods."""
        return bool(self._waiting)

    def run(self) -> None:
        """Check the layout."""
        found = self._schemes.layout(self._node_store.read())
        self._recorder.fault(self._node_store, "LayoutNotServed", found.problem or None)
        for text in found.left_out:
            if text not in self._reported:
                self._recorder.node_note("DeviceLeftOut", text)
        self._reported = found.left_out
        for text in found.waiting:
            if text not in self._waiting:
                self._recorder.node_note("ConfigurationWaits", text)
        if found.waiting != self._waiting:
            self._waiting = found.waiting
            self._on_waited()
