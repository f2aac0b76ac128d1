"""The life of an agent: serve the pages, lock, remember, prepare, serve, end.

Crash-only: it always starts in the way in which it starts after a SIGKILL. Nothing is registered
before cards, mode and grants are known, and every file that a grant names is where running
containers expect it.
"""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from gpu_device_plugin import __version__
from gpu_device_plugin.agent.card_watch.configuration_follower import SeenCards
from gpu_device_plugin.agent.check_table import node_checks
from gpu_device_plugin.agent.node_checks.admin_socket import SOCKET_NAME, AdminSocket
from gpu_device_plugin.agent.node_checks.node_settings import is_other
from gpu_device_plugin.agent.node_edges import Edges, own_pod
from gpu_device_plugin.agent.wiring import Wiring
from gpu_device_plugin.domain.cards.nvml_reports import DriverChanged
from gpu_device_plugin.domain.grants.card_numbers import known_numbers
from gpu_device_plugin.domain.node.modes import SETTINGS_LABEL
from gpu_device_plugin.domain.node.other_plugins import OtherPlugins
from gpu_device_plugin.errors import storage_errors
from gpu_device_plugin.settings.agent_settings import Settings
from gpu_device_plugin.web.http_server import WebServer

EXIT_FOR_REINJECTION = 75
"""EX_TEMPFAIL: to be started again by the container runtime, with the current driver or settings."""
INVENTORY_SECONDS = 5.0
RECOVER_SECONDS = 4.0
CHOICE_SECONDS = 10.0
_END_SECONDS = 2.0
_LOCK_SECONDS = 1.0
_OPEN_FILES = 16384
_log = structlog.get_logger("agent")


class Agent:
    """One node's agent."""

    def __init__(self, settings: Settings, edges: Edges | None = None, *, chosen: str = "") -> None:
        self._settings = settings
        self._chosen = chosen
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._wiring = Wiring(settings, edges)
        self._wiring.cards.driver_changed.subscribe(self._driver_changed)
        self._checks = node_checks(self._wiring)
        if settings.node_settings_dir:
            self._wiring.signals.node_changed.subscribe(self._follow_settings)

    async def run(self) -> int:
        """Serve until asked to end; returns the exit code. ConfigError: another agent serves here."""
        take = partial(self._wiring.lock.take, "/".join(filter(None, own_pod())), os.getpid())
        locked = asyncio.ensure_future(self._wiring.writer.run(take))
        # A second agent is told of the first one, not that its port is in use.
        await asyncio.wait({locked}, timeout=_LOCK_SECONDS)
        if locked.done():
            locked.result()
        _allow_open_files()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        wiring = self._wiring
        loop.add_signal_handler(signal.SIGHUP, wiring.configuration.run)
        address = self._settings.metrics_address
        web = WebServer(address, wiring.metrics_page, wiring.readiness.tell)
        await web.start()
        try:
            await self._until_stopped(self._live(locked))
        finally:
            await self._write_last()
            await web.stop()
            await wiring.edges.pods.close()
            wiring.lock.release()
        _log.info("ended", exit_code=self._exit_code)
        return self._exit_code

    async def _write_last(self) -> None:
        """Let the disk take what it has not taken yet; one that is stuck is not waited for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._wiring.ledger_store.close(_END_SECONDS)
                await self._wiring.writer.run(self._wiring.withdrawal.end)

    async def _until_stopped(self, life: Coroutine[None, None, None]) -> None:
        """Run `life` until the process is asked to end; its error ends the process."""
        living = asyncio.ensure_future(life)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not living.done():
                await self._until_between_containers()
        finally:
            stopping.cancel()
            living.cancel()
            await asyncio.wait({living, stopping})
        if not living.cancelled():
            living.result()

    async def _until_between_containers(self) -> None:
        """Let the kubelet finish a container: it would reject the pod for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS), self._wiring.gate.quiet():
                pass

    async def _live(self, locked: asyncio.Future[None]) -> None:
        """With the pages served already: the disk may be stuck from the start."""
        await locked
        await self._remember()
        self._wiring.readiness.has_read_state = True
        await self._serve()

    async def _remember(self) -> None:
        wiring = self._wiring
        now = wiring.edges.clock.wall_seconds()
        loaded = await wiring.ledger_store.load(now)
        grants = loaded.ledger.grants.values()
        wiring.ledger_store.amend(map(wiring.setup.above_told, grants))
        wiring.snapshots.at_start = frozenset(grant.pod for grant in grants)
        kept = wiring.snapshots.readable_entries()
        known = known_numbers(loaded.ledger, kept, wiring.schemes.card_numbers)
        problems = (
            loaded.bad,
            await wiring.cards.load(now, known),
            await wiring.mode.load(
                now,
                wiring.schemes.granted_in(loaded.ledger),
                has_claims=wiring.claim_endpoint.is_held,
            ),
        )
        # Pods may hold units of a name that NVIDIA's file has no more.
        wiring.schemes.recall(wiring.mode.registered)
        for bad in filter(None, problems):
            wiring.recorder.file_set_aside(bad)
        _log.info(
            "starting",
            version=__version__,
            node=self._settings.node_name,
            mode=str(wiring.node_store.read().mode or self._settings.mode),
            isolation=self._settings.isolation.value,
            memory_enforcer=self._settings.memory_enforcer.value,
            grants=len(wiring.ledger_store.ledger.grants),
            is_new_boot=loaded.is_new_boot,
        )
        for chosen in (self._settings.disable_healthchecks, self._settings.enable_healthchecks):
            if chosen.malformed:
                _log.warning("malformed XIDs of the settings are skipped", xids=chosen.malformed)
        if self._settings.allow_other_plugin:
            wiring.mode.note_foreign("")
            wiring.mode.note_others(OtherPlugins(is_known=True), "")
        if self._settings.standalone:
            wiring.mode.serve_settings()

    async def _serve(self) -> None:
        wiring = self._wiring
        path = Path(self._settings.run_dir) / SOCKET_NAME
        admin_socket = AdminSocket(path, wiring.commands.by_name())
        work = [
            wiring.nvml.run(),
            wiring.edges.plugins.run(),
            wiring.device_lists.run(),
            *wiring.cluster.tasks(),
            wiring.publisher.run(),
            self._checks.run(),
            wiring.configuration.follow(),
            wiring.setup.files.sizes.run(),
            admin_socket.run(),
            wiring.claim_endpoint.run(),
            wiring.resizer.run(),
            self._prepare_and_offer(),
        ]
        tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # a task that ended by itself has failed: its error ends the process

    async def _prepare_and_offer(self) -> None:
        """Get cards and mode, compare with the kubelet, make every slice's files, then register."""
        wiring = self._wiring
        await self._until_cards()
        while wiring.node_store.read().mode is None:
            await asyncio.sleep(0.05)
        await self._name_cards()
        with suppress(TimeoutError):
            async with asyncio.timeout(RECOVER_SECONDS):
                await self._recover()
        # Mode or unit may have waited until it was known who holds slices.
        wiring.mode.republish_if_waiting()
        wiring.schemes.check_size(wiring.node_store.read())
        await self._checks.has_checked.wait()
        while not wiring.mode.others.is_known:
            await asyncio.sleep(0.05)
        await wiring.reconciler.files.repair()
        self._checks.look()  # the first time neither cards nor mode may have been known
        wiring.node_store.subscribe(wiring.device_lists.publish)
        wiring.reconciler.compared.subscribe(wiring.publish_lists)
        wiring.ledger_store.changed.subscribe(wiring.publish_resized)
        wiring.publish_lists()
        wiring.readiness.is_prepared = True
        wiring.claim_endpoint.begin()
        # Objects that exist now stay: no garbage collection should walk them during a call.
        gc.freeze()
        await wiring.reconciler.run(lambda: wiring.is_waited_for)

    async def _until_cards(self) -> None:
        """Wait for NVML's first inventory, but serve grants even if the driver hangs."""
        cards = self._wiring.cards
        with suppress(TimeoutError):
            async with asyncio.timeout(INVENTORY_SECONDS):
                while not cards.has_inventory:
                    await asyncio.sleep(0.02)
        if not cards.has_inventory:
            cards.serve_remembered()

    async def _name_cards(self) -> None:
        """Where the agent chooses how cards reach containers, the driver and the API server have a while to answer."""
        wiring = self._wiring
        cards, configuration = wiring.cards, wiring.configuration
        with suppress(TimeoutError):
            async with asyncio.timeout(CHOICE_SECONDS):
                while configuration.may_choose and not (
                    cards.has_inventory and self._knows_runtime
                ):
                    await asyncio.sleep(0.02)
        await configuration.read_cdi()
        configuration.name_cards(
            lambda: SeenCards(cards.opened, cards.versions.driver, wiring.mode.runtime)
        )

    @property
    def _knows_runtime(self) -> bool:
        """By the API server; that of the last run where there is none to ask."""
        cluster = self._wiring.cluster
        is_away = cluster.is_reachable is False and bool(self._wiring.mode.runtime)
        return self._settings.standalone or is_away or cluster.node is not None

    async def _recover(self) -> None:
        """Adopt lost grants from the kubelet, if it answers."""
        while not await self._wiring.reconciler.run_pass():
            await asyncio.sleep(0.5)
        self._wiring.caller_lookup.remember(await self._wiring.edges.pods.list())

    def _driver_changed(self, change: DriverChanged) -> None:
        """End the process: this container has another driver's libraries, or none."""
        before, after = change.before or "none", change.after or "another one"
        text = f"the driver changed from {before} to {after}"
        _log.warning("ending, to be started with the new driver", text=text)
        self._wiring.recorder.node_note("DriverChanged", f"{text}; the agent restarts")
        self._exit_code = EXIT_FOR_REINJECTION
        self._stop.set()

    def _follow_settings(self, _: None) -> None:
        """End the process where the node's label names other settings than those it runs with."""
        node = self._wiring.cluster.node
        if node is not None and is_other(self._settings, self._chosen, node.labels):
            _log.warning(
                "ending, to be started with other settings",
                label=SETTINGS_LABEL,
                before=self._chosen or "absent",
            )
            self._exit_code = EXIT_FOR_REINJECTION
            self._stop.set()


def _allow_open_files() -> None:
    """The files of every slice stay open, and many runtimes start a process with a limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _OPEN_FILES)), hard))


async def run_agent(settings: Settings, edges: Edges | None = None, *, chosen: str = "") -> int:
    """Run an agent in this process; see `Agent.run`. `chosen` is the label that chose settings."""
    with storage_errors("made"):
        Path(settings.run_dir).mkdir(parents=True, exist_ok=True)
    return await Agent(settings, edges, chosen=chosen).run()
