"""`gpu-device-plugin mps-daemon`: MPS servers for the replicas of a node, and their cards' compute mode.

The agent offers replicas only while this process lives and serves what the agent would offer.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_device_plugin.apps.cards.mps_server import ControlDaemon
from gpu_device_plugin.apps.cards.users import InUseError
from gpu_device_plugin.apps.lifecycle.kubelet_pods import pods_with_gpus
from gpu_device_plugin.config.nvidia_settings import Configuration
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.reports import CardReport
from gpu_device_plugin.domain.schemes.nvidia.configuration import SharingKind
from gpu_device_plugin.domain.schemes.nvidia.mps import Server, served_text, servers
from gpu_device_plugin.domain.schemes.nvidia.offers import offers
from gpu_device_plugin.errors import EdgeError, GpuPluginError, StorageError
from gpu_device_plugin.nvml.session import EXCLUSIVE_PROCESS, Session, session
from gpu_device_plugin.store.mps_lock import ServingLock
from gpu_device_plugin.store.mps_modes import ModesFile

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MpsPlaces:
    """What the daemon works with.

    Attributes:
        root: Its directory on the host.
        library: Path of libnvidia-ml.so.1; "" for the system's.
        control: Path of `nvidia-cuda-mps-control`.
        kubelet: The kubelet's directory.
        retry_seconds: Time between attempts while it cannot serve.
    """

    root: Path
    library: str
    control: str
    kubelet: Path
    retry_seconds: float = 10.0


class MpsDaemon:
    """Serves until cancelled; what keeps it from serving is logged once, and tried again.

    Args:
        places: What it works with.
        configuration: NVIDIA's configuration, read anew at each attempt.
    """

    def __init__(self, places: MpsPlaces, configuration: Callable[[], Configuration]) -> None:
        self._places = places
        self._configuration = configuration
        self._lock = ServingLock(places.root)
        self._modes = ModesFile(places.root)
        self._said = ""

    async def run(self) -> None:
        """Serve until cancelled, then undo what was changed.

        Raises:
            ConfigError: Another daemon serves this directory, or the configuration is malformed.
        """
        self._lock.take()
        self._configuration()
        _make_shared_memory(self._places.root / "shm")
        while True:
            try:
                self._restore_modes()
                await self._serve()
            except GpuPluginError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    _log.warning("mps is not served", reason=self._said)
            await asyncio.sleep(self._places.retry_seconds)

    async def _serve(self) -> None:
        """Serve until a server ends.

        Raises:
            EdgeError: It cannot serve, or a server has ended.
        """
        with session(self._places.library) as nvml:
            text, wanted = self._wanted(nvml.cards)
            cards = [card for card in nvml.cards if any(card.uuid in s.memory_mib for s in wanted)]
            await self._refuse_users(nvml, cards)
            self._modes.write({card.uuid: nvml.compute_mode(card) for card in cards})
        daemons = [ControlDaemon(s, self._places.root, self._places.control) for s in wanted]
        try:
            with session(self._places.library) as nvml:
                for card in cards:
                    nvml.set_compute_mode(card, EXCLUSIVE_PROCESS)
            for daemon in daemons:
                await daemon.start()
            self._lock.serve(text)
            self._said = ""
            _log.info("mps is served", servers=text.splitlines())
            raise EdgeError(await _first_end(daemons))
        finally:
            self._lock.serve("")
            for daemon in daemons:
                await daemon.stop()
            self._restore_modes()

    def _wanted(self, found: Sequence[CardReport]) -> tuple[str, tuple[Server, ...]]:
        configuration = self._configuration()
        if configuration.sharing.kind is not SharingKind.MPS:
            raise EdgeError("the configuration shares no card by MPS")
        cards = [
            Card(c.uuid, c.index, c.index, c.minor, c.model, c.memory_mib, c.hardware)
            for c in found
        ]
        offered = offers(cards, configuration)
        wanted = servers(offered.resources)
        if not wanted:
            raise EdgeError(offered.problem or "no card of this node is shared by MPS")
        return served_text(offered.resources), wanted

    async def _refuse_users(self, nvml: Session, cards: Sequence[CardReport]) -> None:
        """A client that waits for its server does not count: it holds a replica."""
        uuids = {card.uuid for card in cards}

        def counts(unit: str) -> bool:
            return unit in uuids or not unit.startswith(("GPU-", "MIG-"))

        users = [f"{pod} holds GPUs" for pod in await pods_with_gpus(self._places.kubelet, counts)]
        users += [f"{user} uses card {card.index}" for card in cards for user in nvml.users(card)]
        if users:
            raise InUseError("in use, and not changed: " + ", ".join(users))

    def _restore_modes(self) -> None:
        """Undo what this or an earlier daemon changed; a card that is away stays in the file."""
        before = self._modes.read()
        if not before:
            return
        with session(self._places.library) as nvml:
            for card in nvml.cards:
                if card.uuid in before:
                    nvml.set_compute_mode(card, before.pop(card.uuid))
        self._modes.write(before)


def _make_shared_memory(directory: Path) -> None:
    """What clients mount as /dev/shm; below /run it lies in memory."""
    try:
        directory.mkdir(exist_ok=True)
        directory.chmod(0o1777)
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}") from error


async def _first_end(daemons: Sequence[ControlDaemon]) -> str:
    """Why the first of them has ended."""
    waiting = [asyncio.ensure_future(daemon.ended()) for daemon in daemons]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for task in waiting:
            task.cancel()
