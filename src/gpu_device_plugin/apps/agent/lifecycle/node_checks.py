"""Checks of the node, every few seconds: library, disk, labels, other plugins."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_device_plugin.apps.agent.lifecycle import exposure
from gpu_device_plugin.apps.agent.lifecycle.admin_socket import Command
from gpu_device_plugin.apps.agent.lifecycle.exposure import Exposure
from gpu_device_plugin.apps.agent.lifecycle.withdrawal import Withdrawal
from gpu_device_plugin.apps.agent.publish.cluster_side import ClusterSide
from gpu_device_plugin.apps.agent.publish.device_lists import message_problem
from gpu_device_plugin.apps.agent.slices.library import MISSING
from gpu_device_plugin.apps.agent.state.node_state import NodeState
from gpu_device_plugin.apps.agent.wiring import Wiring
from gpu_device_plugin.errors import RequestError, StorageError
from gpu_device_plugin.store.selinux import Kernel, SecurityLabels

CHECK_SECONDS = 2.0


class NodeChecks:
    """Turns what it sees into faults of the node, and clears them when they are over."""

    def __init__(
        self, wiring: Wiring, withdrawal: Withdrawal, kernel: Kernel | None = None
    ) -> None:
        self._wiring = wiring
        self._withdrawal = withdrawal
        withdrawal.on_stay = lambda: self._requested.set()
        self.keep_lock: Callable[[], bool] = lambda: False
        self.has_checked_disks = asyncio.Event()
        self._requested = asyncio.Event()
        self._library_problem = ""
        self._restarts = 0
        settings = wiring.settings
        self._labels = SecurityLabels(
            [Path(settings.run_dir), Path(settings.library_dir), Path(settings.state_dir)],
            kernel or Kernel(),
        )
        self._exposure: Exposure | None = None if settings.simulator_dir else Exposure(os.environ)
        self._mode = wiring.node_store.read().mode
        wiring.node_store.listen(self._state_changed)
        wiring.reconciler.is_waited_for = lambda: wiring.mode.is_waiting or withdrawal.is_going

    async def run(self) -> None:
        """Check until cancelled; what waits for a disk holds up nothing else."""
        await asyncio.gather(self._run_checks(), self._run_disk_checks())

    async def _run_checks(self) -> None:
        while True:
            self.run_checks()
            await asyncio.sleep(CHECK_SECONDS)

    async def _run_disk_checks(self) -> None:
        while True:
            self._requested.clear()
            await self.check_disks()
            self.has_checked_disks.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._requested.wait()

    async def check_disks(self) -> None:
        """Lock, library and labels, once."""
        await self._check_lock()
        await self._check_library()
        await self._check_labels()

    def run_checks(self) -> None:
        """Every check that needs no disk, once."""
        self._withdrawal.follow()
        self._check_exposure()
        self._check_disk()
        self._check_message()
        if self._wiring.mode.is_waiting:
            self._wiring.mode.settle()
        while self._restarts < self._wiring.nvml.restarts:
            self._restarts += 1
            self._wiring.metrics.count_nvml_restart()

    def node_changed(self) -> None:
        """The API server reports a change of our node."""
        cluster = self._wiring.cluster
        if not isinstance(cluster, ClusterSide) or cluster.node.view is None:
            return
        foreign = cluster.node.foreign_plugin
        allowed = self._wiring.settings.allow_other_plugin
        text = "" if foreign is None or allowed else foreign.text
        cure = "nothing is offered. Remove it, or start with --allow-other-plugin"
        self._wiring.mode.note_foreign(text and f"{text}; {cure}")
        # Before the labels: a node that is given up must not be offered meanwhile.
        self._withdrawal.follow()
        self._wiring.mode.follow(cluster.node.view.labels)

    def commands(self) -> Mapping[str, Command]:
        """What a person can ask on this node."""
        return {"why": self._why, "recover": self._recover}

    def _state_changed(self, state: NodeState) -> None:
        """Another mode may need what the old one did not; it is known before it is offered."""
        if state.mode is not self._mode:
            self._mode = state.mode
            self._judge_library()

    async def _check_library(self) -> None:
        state = self._wiring.node_store.read()
        if state.wants_isolation and not state.mark:
            version, self._library_problem = await self._wiring.library.check()
            self._wiring.node_store.update(library_version=version)
            self._judge_library()

    def _judge_library(self) -> None:
        state, problem = self._wiring.node_store.read(), self._library_problem
        if state.wants_isolation and not state.mark:
            self._wiring.recorder.fault(
                self._wiring.node_store, MISSING, problem if problem and state.isolates else None
            )

    async def _check_labels(self) -> None:
        """Containers mount from these directories wherever slices are enforced."""
        problem = None
        if self._wiring.node_store.read().isolates:
            try:
                await self._wiring.writer.run(self._labels.ensure)
            except StorageError as error:
                problem = str(error)
        self._wiring.recorder.fault(self._wiring.node_store, "LabelsMissing", problem)

    def _check_exposure(self) -> None:
        """Told once a run; it is the node's set-up, which changes with a restart of its runtime."""
        cluster = self._wiring.cluster
        runtime_class = cluster.runtime_class if isinstance(cluster, ClusterSide) else None
        if self._exposure is not None and self._exposure.is_proven(runtime_class):
            self._wiring.recorder.node_note("CardsExposed", exposure.TEXT)
            self._exposure = None

    async def _check_lock(self) -> None:
        """Where it is lost, so is what lay beside it; an error ends the process.

        In a pod the directory is a mount: removed on the node it takes no file for good, and comes
        back when the container is made anew.
        """
        if await self._wiring.writer.run(self.keep_lock):
            place = self._wiring.settings.state_dir
            text = f"{place}: was emptied under the agent, which writes it again"
            self._wiring.recorder.file_set_aside(text)
            self._wiring.ledger_store.rewrite()
            self._wiring.cards.settle()
            self._wiring.mode.settle()

    def _check_disk(self) -> None:
        ledger_store = self._wiring.ledger_store
        if ledger_store.disk_fault is not None:
            ledger_store.rewrite()
        self._wiring.recorder.fault(
            self._wiring.node_store, "StateNotWritable", ledger_store.disk_fault
        )

    def _check_message(self) -> None:
        self._wiring.recorder.fault(
            self._wiring.node_store,
            "DeviceListTooLong",
            message_problem(self._wiring.node_store.read()),
        )

    def _why(self, question: Mapping[str, Any]) -> str:
        namespace, name = str(question.get("namespace", "")), str(question.get("name", ""))
        return self._wiring.recorder.why(namespace, name, self._wiring.reconciler.living())

    def _recover(self, question: Mapping[str, Any]) -> str:
        wanted = str(question.get("card", ""))
        shown = [card for card in self._wiring.node_store.read().cards if card.is_shown]
        card = next((c for c in shown if wanted in (c.uuid, str(c.index))), None)
        if not self._wiring.cards.clear(card.uuid if card else wanted):
            known = ", ".join(f"{c.index} ({c.uuid})" for c in shown) or "none"
            raise RequestError(f"no card {wanted!r} on this node; known: {known}", reason="NoCard")
        if card is None:
            return f"card {wanted}: it is not there; what was known of it is forgotten\n"
        return f"card {wanted}: its faults are forgotten; one that is still there opens again\n"
