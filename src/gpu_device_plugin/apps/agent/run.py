"""The life of an agent: lock, remember, prepare, serve, end.

Crash-only: the way it starts after a SIGKILL is the way it always starts. Nothing is
registered before the cards, the mode and the last grants are known and every file that a
grant names lies where running containers expect it.
"""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from gpu_device_plugin.apps.agent.lifecycle.admin_socket import SOCKET_NAME, AdminSocket
from gpu_device_plugin.apps.agent.lifecycle.node_checks import NodeChecks
from gpu_device_plugin.apps.agent.lifecycle.readiness import Readiness
from gpu_device_plugin.apps.agent.lifecycle.withdrawal import Withdrawal
from gpu_device_plugin.apps.agent.publish.cluster_side import ClusterSide
from gpu_device_plugin.apps.agent.publish.device_lists import message_problem
from gpu_device_plugin.apps.agent.reconcile.card_numbers import known_numbers
from gpu_device_plugin.apps.agent.wiring import Wiring
from gpu_device_plugin.config import Settings
from gpu_device_plugin.domain.reports import DriverChanged
from gpu_device_plugin.errors import ConfigError, KubeletError, StorageError
from gpu_device_plugin.kubelet.checkpoint import CheckpointEntry
from gpu_device_plugin.store.lock import NodeLock
from gpu_device_plugin.web.server import Pages, WebServer

EXIT_FOR_REINJECTION = 75
"""EX_TEMPFAIL: the container runtime shall start us again, with the driver that is there now."""
INVENTORY_SECONDS = 5.0
RECOVER_SECONDS = 4.0
_END_SECONDS = 2.0
_log = structlog.get_logger("agent")


class Agent:
    """One node's agent."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._wiring = Wiring(settings)
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._lock = NodeLock(Path(settings.state_dir) / "lock")
        self._readiness = Readiness(self._wiring)
        self._withdrawal = Withdrawal(self._wiring)

    async def run(self) -> int:
        """Serve until told to end; the exit code.

        Raises:
            ConfigError: Another agent serves this node.
            StorageError: The state directory cannot be used.
        """
        own_pod = (os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", ""))
        take = partial(self._lock.take, "/".join(filter(None, own_pod)), os.getpid())
        await self._wiring.writer.run(take)
        if isinstance(self._wiring.cluster, ClusterSide):
            self._wiring.cluster.own_pod = own_pod
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._wiring.metrics.ask_readiness(lambda: self._readiness.tell()[0])
        pages = Pages(self._wiring.metrics_page, lambda: True, self._readiness.tell)
        web = WebServer(self._settings.metrics_address, pages)
        await web.start()
        try:
            await self._remember()
            await self._serve()
        finally:
            await self._wiring.ledger_store.close(_END_SECONDS)
            await self._wiring.writer.drain(_END_SECONDS)
            await web.stop()
            await self._wiring.pod_resources.close()
            self._withdrawal.end()
            self._lock.release()
        _log.info("ended", exit_code=self._exit_code)
        return self._exit_code

    async def _remember(self) -> None:
        """What the last run left in the state directory."""
        now, wiring = time.time(), self._wiring
        loaded = await wiring.ledger_store.load(now)
        known = known_numbers(loaded.ledger, self._kept_answers())
        problems = (loaded.bad, await wiring.cards.load(now, known), await wiring.mode.load(now))
        for bad in problems:
            if bad is not None:
                wiring.recorder.file_set_aside(bad)
        _log.info(
            "starting",
            node=self._settings.node_name,
            grants=len(wiring.ledger_store.ledger.grants),
            is_new_boot=loaded.is_new_boot,
        )
        if self._settings.allow_other_plugin:
            wiring.mode.note_foreign("")
        if self._settings.standalone:
            wiring.mode.serve_settings()

    def _kept_answers(self) -> Sequence[CheckpointEntry]:
        try:
            return self._wiring.snapshots.entries()
        except KubeletError as error:
            _log.info("the kubelet's checkpoint cannot be read", error=str(error))
            return ()

    async def _serve(self) -> None:
        wiring = self._wiring
        wiring.cards.on_driver_changed = self._driver_changed
        node_checks = NodeChecks(wiring, self._withdrawal)
        node_checks.keep_lock = self._lock.keep
        wiring.reconciler.after_pass = self._after_pass
        if isinstance(wiring.cluster, ClusterSide):
            wiring.cluster.on_node = node_checks.node_changed
        admin_socket = AdminSocket(
            Path(self._settings.run_dir) / SOCKET_NAME, node_checks.commands()
        )
        work = [
            wiring.nvml.run(),
            wiring.directory.run(),
            *(endpoint.run() for endpoint in wiring.endpoints.values()),
            *wiring.cluster.tasks(),
            wiring.publisher.run(),
            node_checks.run(),
            admin_socket.run(),
            self._prepare_and_offer(node_checks),
        ]
        tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
        stopping = asyncio.ensure_future(self._stop.wait())
        done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(*tasks, stopping, return_exceptions=True)
        for task in done - {stopping}:
            task.result()  # a task that ended by itself has failed: its error ends the process

    async def _prepare_and_offer(self, node_checks: NodeChecks) -> None:
        """Before the first Register: cards, mode, what the kubelet holds, every slice's files."""
        wiring = self._wiring
        await self._until_cards()
        while wiring.node_store.read().mode is None:
            await asyncio.sleep(0.05)
        problem = message_problem(wiring.node_store.read())
        if problem is not None:
            raise ConfigError(problem)
        with suppress(TimeoutError):
            async with asyncio.timeout(RECOVER_SECONDS):
                await self._recover()
        await node_checks.has_checked_disks.wait()
        await wiring.reconciler.repair_files()
        wiring.node_store.listen(wiring.device_lists.publish)
        wiring.device_lists.publish(wiring.node_store.read())
        self._readiness.is_prepared = True
        # What exists by now stays: no collection shall walk all of it during a call.
        gc.freeze()
        await wiring.reconciler.run()

    async def _until_cards(self) -> None:
        """NVML's first inventory; a driver that hangs must not keep grants from being served."""
        cards = self._wiring.cards
        with suppress(TimeoutError):
            async with asyncio.timeout(INVENTORY_SECONDS):
                while not cards.has_inventory:
                    await asyncio.sleep(0.02)
        if not cards.has_inventory:
            cards.serve_remembered()

    async def _recover(self) -> None:
        """Grants that were lost come back from the kubelet, if it answers."""
        while not await self._wiring.reconciler.run_pass():
            await asyncio.sleep(0.5)
        self._wiring.identifier.remember(await self._wiring.pod_resources.list())

    def _after_pass(self) -> None:
        self._wiring.publisher.changed()
        self._withdrawal.settle()

    def _driver_changed(self, change: DriverChanged) -> None:
        """The container was injected with another driver, or with none: it has to be made anew."""
        text = f"the driver went from {change.before or 'none'} to {change.after or 'another one'}"
        _log.warning("ending for re-injection", text=text)
        self._wiring.recorder.node_note("DriverChanged", f"{text}; the agent restarts")
        self._exit_code = EXIT_FOR_REINJECTION
        self._stop.set()


async def run_agent(settings: Settings) -> int:
    """Run an agent in this process; see `Agent.run`.

    Raises:
        ConfigError: Another agent serves this node.
        StorageError: The state directory cannot be made.
    """
    try:
        Path(settings.state_dir).mkdir(parents=True, exist_ok=True)
        Path(settings.run_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{error.filename}: cannot be made: {error.strerror}") from error
    return await Agent(settings).run()
