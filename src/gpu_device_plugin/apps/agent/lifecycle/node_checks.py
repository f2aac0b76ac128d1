"""Checks of the node, every few seconds: state directory, library, labels, disk, device lists."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gpu_device_plugin.apps.agent.inventory.cards import CardInventory
from gpu_device_plugin.apps.agent.inventory.mode import ModeFollower
from gpu_device_plugin.apps.agent.lifecycle import exposure
from gpu_device_plugin.apps.agent.lifecycle.exposure import Exposure
from gpu_device_plugin.apps.agent.publish.cluster import Cluster
from gpu_device_plugin.apps.agent.publish.device_lists import message_problem
from gpu_device_plugin.apps.agent.publish.event_recorder import EventRecorder
from gpu_device_plugin.apps.agent.slices.library import MISSING, LibraryInstaller
from gpu_device_plugin.apps.agent.state.ledger_store import LedgerStore
from gpu_device_plugin.apps.agent.state.node_store import NodeStore
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.errors import StorageError
from gpu_device_plugin.store.selinux import SecurityLabels

CHECK_SECONDS = 2.0


class Check(Protocol):
    """One check; what it finds becomes a fault of the node, or ends one."""

    def run(self) -> None:
        """Check once, without waiting for anything."""
        ...


class NodeChecks:
    """Runs the checks in order, repeatedly."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = tuple(checks)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self.run_once()
            await asyncio.sleep(CHECK_SECONDS)

    def run_once(self) -> None:
        """Every check once."""
        for check in self._checks:
            check.run()


class CallCheck:
    """A check that is one call of another part."""

    def __init__(self, call: Callable[[], None]) -> None:
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
        node_store.subscribe(self._state_changed)

    def run(self) -> None:
        """Install what we bring, and publish the version that new containers get."""
        state = self._node_store.read()
        if not state.wants_isolation or state.mark:
            return
        version, problem = self._library.check()
        self._node_store.update(library_version=version)
        text = problem if problem and state.isolates else None
        self._recorder.fault(self._node_store, MISSING, text)

    def leave(self, *, is_leaving: bool) -> None:
        """Stop installing, or (False) install as usual."""
        self._library.is_leaving = is_leaving

    def _state_changed(self, state: NodeState) -> None:
        """Check again before another mode is offered, which may need the library."""
        if state.mode is not self._mode:
            self._mode = state.mode
            self.run()


class SecurityLabelCheck:
    """Where slices are enforced, containers must be allowed to read our directories."""

    def __init__(
        self, labels: SecurityLabels, node_store: NodeStore, recorder: EventRecorder
    ) -> None:
        self._labels = labels
        self._node_store = node_store
        self._recorder = recorder

    def run(self) -> None:
        """Give the label to what does not have it."""
        problem = None
        if self._node_store.read().isolates:
            try:
                self._labels.ensure()
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


class StateDirectoryCheck:
    """If the lock file is gone, so are the others; an error here ends the process.

    In a pod the directory is a mount. If it is removed on the node, no file can be written there
    until the container is created again.
    """

    def __init__(
        self,
        keep_lock: Callable[[], bool],
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

    def run(self) -> None:
        """Write everything again if the directory was emptied."""
        if self._keep_lock():
            text = f"{self._state_dir}: was emptied while the agent ran; the agent writes it again"
            self._recorder.file_set_aside(text)
            self._ledger_store.probe()
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
            self._ledger_store.probe()
        fault = self._ledger_store.disk_fault
        self._recorder.fault(self._node_store, "StateNotWritable", fault)


class DeviceListCheck:
    """The kubelet must be able to receive the device lists of this node."""

    def __init__(self, node_store: NodeStore, recorder: EventRecorder) -> None:
        self._node_store = node_store
        self._recorder = recorder

    def run(self) -> None:
        """Count the bytes."""
        problem = message_problem(self._node_store.read())
        self._recorder.fault(self._node_store, "DeviceListTooLong", problem)
