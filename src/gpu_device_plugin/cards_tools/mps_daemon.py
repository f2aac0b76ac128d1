"""`gpu-device-plugin mps-daemon`: MPS servers for the replicas of a node, and their cards' compute mode.

Each server is one `nvidia-cuda-mps-control` in the foreground, with its limits. The agent offers
replicas only while this process lives and serves what the agent would offer.
"""

import asyncio
import os
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from gpu_device_plugin.cards_tools.mig_apply import InUseError, refuse_where_hidden
from gpu_device_plugin.disk.mps_serving import ModesFile, ServingLock
from gpu_device_plugin.domain.cards.card import CardNumber
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.nvidia.configuration import Configuration, SharingKind
from gpu_device_plugin.domain.nvidia.mps import ASK, Server, pipe_directory, served_text, servers
from gpu_device_plugin.domain.nvidia.offers import device_of, offers
from gpu_device_plugin.errors import EdgeError, GpuPluginError, NvmlError, StorageError
from gpu_device_plugin.install_hooks.pods_of_kubelet import pods_with_gpus
from gpu_device_plugin.nvml.card_session import EXCLUSIVE_PROCESS, CardSession, session

_ANSWER_SECONDS = 20.0
_PAUSE_SECONDS = 0.2


async def quit_leftovers(root: Path, program: str) -> None:
    """End the control daemons that outlived a killed `mps-daemon`: their servers have contexts."""
    for pid in sorted(root.glob("*/*/pipe/nvidia-cuda-mps-control.pid")):
        with suppress(EdgeError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await _tell(program, _environment(pid.parent), "quit")


class ControlDaemon:
    """The control daemon of one resource."""

    def __init__(self, server: Server, root: Path, program: str) -> None:
        self._server = server
        self._program = program
        pipe = Path(pipe_directory(str(root), server.resource))
        self._directories = (pipe, pipe.parent / "log")
        self._environment = {
            **_environment(pipe),
            "CUDA_VISIBLE_DEVICES": ",".join(server.memory_mib),
        }
        self._tell = partial(_tell, program, self._environment)
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it, wait until it answers, and set the limits; EdgeError if it fails in that."""
        try:
            for directory in self._directories:
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self._directories[0]}: {error.strerror}") from error
        self._process = await _spawn(
            self._program, self._environment, "-f", stdin=DEVNULL, stdout=DEVNULL
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while not await self._answers():
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError as error:
            raise EdgeError(
                f"{self._program} of {self._server.resource} does not answer in "
                f"{_ANSWER_SECONDS:.0f} s; see {self._directories[1]}"
            ) from error
        for command in self._server.commands:
            await self._tell(command)

    async def wait_end(self) -> str:
        """Wait until it ends by itself; why that is bad."""
        assert self._process is not None  # noqa: S101 - start comes first
        code = await self._process.wait()
        return f"{self._program} of {self._server.resource} ended with {code}"

    async def stop(self) -> None:
        """End it, its server and so its clients."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                with suppress(EdgeError):
                    await self._tell("quit")
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _answers(self) -> bool:
        process = self._process
        if process is not None and process.returncode is not None:
            raise EdgeError(
                f"{self._program} of {self._server.resource} ended with {process.returncode}; see "
                f"{self._directories[1]}"
            )
        try:
            await self._tell(ASK)
        except EdgeError:
            return False
        return True


def _environment(pipe: Path) -> dict[str, str]:
    log = str(pipe.parent / "log")
    return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": log}


async def _tell(program: str, environment: Mapping[str, str], command: str) -> None:
    asking = await _spawn(program, environment, stdin=PIPE, stdout=PIPE)
    try:
        output, _ = await asking.communicate(f"{command}\n".encode())
    finally:
        if asking.returncode is None:
            asking.kill()
    if asking.returncode:
        said = output.decode(errors="replace").strip()
        raise EdgeError(f"{program}: {command}: {said or asking.returncode}")


async def _spawn(
    program: str, environment: Mapping[str, str], *arguments: str, stdin: int, stdout: int
) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            program, *arguments, stdin=stdin, stdout=stdout, stderr=STDOUT, env=environment
        )
    except OSError as error:
        raise EdgeError(f"{program}: cannot be started: {error.strerror}") from error


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MpsPlaces:
    """What the daemon works with."""

    root: Path  # its directory on the host
    library: str
    control: str
    kubelet: Path
    retry_seconds: float = 10.0
    poll_seconds: float = 2.0  # between two looks at the configuration while it serves
    cards_seconds: float = 20.0
    """Between two checks for new cards: each opens NVML, which lists the cards of that moment."""
    settle_seconds: float = 4.0  # in which the agent withdraws cards that are said to be taken


class MpsDaemon:
    """Serves until cancelled; what keeps it from serving is logged once, and tried again.

    Another configuration, or a card that came, is served once no pod holds a replica any more: a
    new server ends the clients of the one before.
    """

    def __init__(self, places: MpsPlaces, configuration: Callable[[], Configuration]) -> None:
        self._places = places
        self._configuration = configuration
        self._lock = ServingLock(places.root)
        self._modes = ModesFile(places.root)
        self._said = ""

    async def run(self) -> None:
        """Serve until cancelled, then undo what was changed. ConfigError: another daemon serves."""
        self._lock.take()
        _make_shared_memory(self._places.root / "shm")
        while True:
            try:
                self._restore_modes()
                await self._serve()
            except GpuPluginError as error:
                self._say("serve", str(error))
                await asyncio.sleep(self._places.retry_seconds)

    def _say(self, what: str, reason: str) -> None:
        with suppress(StorageError):
            self._lock.wait(reason)
        if reason != self._said:
            self._said = reason
            if reason:
                _log.warning("MPS waits", step=what, error=reason)

    async def _serve(self) -> None:
        """Serve until something else is to be served. GpuPluginError: it cannot, or a server ended."""
        configuration = self._configuration()
        with session(self._places.library) as nvml:
            text, wanted = _servers_for(nvml.cards, configuration)
            cards = [card for card in nvml.cards if any(card.uuid in s.memory_mib for s in wanted)]
            unreadable = nvml.unreadable
            await self._refuse_users(nvml, cards)
        daemons = [ControlDaemon(s, self._places.root, self._places.control) for s in wanted]
        try:
            await self._take(cards)
            for daemon in daemons:
                await daemon.start()
            self._lock.serve(text)
            self._say("", "")
            _log.info("MPS served", servers=text.splitlines(), unreadable=unreadable)
            await self._until_replaced(configuration, text, daemons)
        finally:
            await self._give_back(cards, daemons)

    async def _take(self, cards: Sequence[CardReport]) -> None:
        """Make cards exclusive, after the agent had time to withdraw them.

        It reads the configuration by itself, and may offer them whole for a moment still.
        """
        self._take_out(cards)
        await asyncio.sleep(self._places.settle_seconds)
        with session(self._places.library) as nvml:
            await self._refuse_users(nvml, cards)
            # What is in the file was not undone, for its card was away or did not answer: it stays.
            modes = {card.uuid: nvml.compute_mode(card) for card in cards}
            self._modes.write({**modes, **self._modes.read()})
            for card in cards:
                nvml.set_compute_mode(card, EXCLUSIVE_PROCESS)

    async def _give_back(
        self, cards: Sequence[CardReport], daemons: Sequence[ControlDaemon]
    ) -> None:
        """Stop the servers and undo the modes; what fails is logged, and left to the next start.

        It raises nothing: that would replace why serving ends, a cancellation among it.
        """
        try:
            self._take_out(cards)
            for daemon in daemons:
                await daemon.stop()
            self._restore_modes()
        except GpuPluginError as error:
            _log.error("compute modes cannot be restored", error=str(error))

    def _take_out(self, cards: Sequence[CardReport]) -> None:
        """Have the agent offer nothing of these cards: they are taken, and nothing of them is served."""
        self._lock.serve("\n".join(card.uuid for card in cards))

    async def _until_replaced(
        self, configuration: Configuration, text: str, daemons: Sequence[ControlDaemon]
    ) -> None:
        """Return when something else is to be served, and no pod holds anything of these cards."""
        ends = [asyncio.ensure_future(daemon.wait_end()) for daemon in daemons]
        looked_at, is_new = time.monotonic(), False
        try:
            while True:
                if time.monotonic() - looked_at >= self._places.cards_seconds:
                    looked_at, is_new = time.monotonic(), self._has_new_card(configuration, text)
                if await self._is_replaced(configuration, text, has_new_card=is_new):
                    return
                done, _ = await asyncio.wait(
                    ends, timeout=self._places.poll_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    raise EdgeError(next(iter(done)).result())
        finally:
            for end in ends:
                end.cancel()

    def _has_new_card(self, configuration: Configuration, text: str) -> bool:
        """Whether a card came that is to be served; one that has gone, or is lost, changes nothing."""
        try:
            with session(self._places.library) as nvml:
                wanted, _ = _servers_for(nvml.cards, configuration)
        except GpuPluginError as error:
            _log.warning("the cards cannot be read", error=str(error))
            return False
        return not set(wanted.splitlines()) <= set(text.splitlines())

    async def _is_replaced(
        self, configuration: Configuration, text: str, *, has_new_card: bool
    ) -> bool:
        """A configuration that cannot be read leaves the one before in force."""
        try:
            if self._configuration() == configuration and not has_new_card:
                self._say("", "")
                return False
            words = set(text.split())
            holders = await pods_with_gpus(self._places.kubelet, lambda i: device_of(i) in words)
        except GpuPluginError as error:
            self._say("read the configuration", str(error))
            return False
        what = "serve a new card" if has_new_card else "serve another configuration"
        self._say(what, ", ".join(f"{pod} holds GPUs" for pod in holders))
        return not holders

    async def _refuse_users(self, nvml: CardSession, cards: Sequence[CardReport]) -> None:
        """Check that no pod holds one of them whole, and that no process computes on it.

        A client that waits for its server does not count: it holds a replica.
        """
        uuids = {card.uuid for card in cards}

        def counts(unit: str) -> bool:
            return unit in uuids or not unit.startswith(("GPU-", "MIG-"))

        holders = await pods_with_gpus(self._places.kubelet, counts)
        refuse_where_hidden(self._places.kubelet)
        users = [f"{pod} holds GPUs" for pod in holders]
        if not users:
            await quit_leftovers(self._places.root, self._places.control)
        users += [
            f"{user} uses card {card.index}" for card in cards for user in nvml.computing(card)
        ]
        if users:
            raise InUseError("in use, and not changed: " + ", ".join(users))

    def _restore_modes(self) -> None:
        """Undo what this or an earlier daemon changed, and serve nothing.

        A card that is away or refuses stays in the file, and keeps no other from its mode.
        """
        before = self._modes.read()
        if before:
            with session(self._places.library) as nvml:
                for card in nvml.cards:
                    if card.uuid in before:
                        self._restore(nvml, card, before)
            self._modes.write(before)
        self._lock.serve("")

    def _restore(self, nvml: CardSession, card: CardReport, before: dict[str, int]) -> None:
        try:
            nvml.set_compute_mode(card, before[card.uuid])
        except NvmlError as error:
            _log.error("a compute mode cannot be restored", error=str(error))
        else:
            del before[card.uuid]


def _make_shared_memory(directory: Path) -> None:
    """What clients mount as /dev/shm; below /run it lies in memory."""
    try:
        directory.mkdir(exist_ok=True)
        directory.chmod(0o1777)
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}") from error


def _servers_for(
    found: Sequence[CardReport], configuration: Configuration
) -> tuple[str, tuple[Server, ...]]:
    """What the agent must agree to, and the servers; EdgeError if no card is shared by MPS."""
    if configuration.sharing.kind is not SharingKind.MPS:
        raise EdgeError("the configuration shares no card by MPS")
    # The number counts for nothing here: no unit is named by it.
    cards = [report.as_card(CardNumber(report.index)) for report in found]
    offered = offers(cards, configuration)
    wanted = servers(offered.resources)
    if not wanted:
        raise EdgeError(offered.problem or "no card of this node is shared by MPS")
    return served_text(offered.resources), wanted
