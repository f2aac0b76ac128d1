"""`gpu-device-plugin mig apply --watch`: cut the cards as the node's label asks, when they are free."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_device_plugin.apps.cards.mig_apply import apply
from gpu_device_plugin.apps.cards.node_label import NodeLabel
from gpu_device_plugin.cluster.api import ApiServer
from gpu_device_plugin.cluster.events import EventNote, Events
from gpu_device_plugin.domain.modes import MIG_PROFILE_LABEL
from gpu_device_plugin.errors import GpuPluginError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Which node.

    Attributes:
        name: Its name.
        library: Path of libnvidia-ml.so.1; "" for the system's.
        kubelet: The kubelet's directory.
        retry_seconds: Time between attempts while a card is in use.
    """

    name: str
    library: str
    kubelet: Path
    retry_seconds: float = 30.0


class MigWatch:
    """Follows the label of one node; a card that is in use is tried again."""

    def __init__(self, api: ApiServer, place: Place) -> None:
        self._place = place
        self._events = Events(api, place.name)
        self._label = NodeLabel(api, place.name, MIG_PROFILE_LABEL)
        self._said = ""

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._label.run())
            group.create_task(self._events.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            self._label.changed.clear()
            profile = self._label.value
            is_settled = not profile or await self._try(profile)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if is_settled else self._place.retry_seconds):
                    await self._label.changed.wait()

    async def _try(self, profile: str) -> bool:
        """Whether the cards are cut so; the reason goes to the log and into an Event."""
        lines: list[str] = []
        place = self._place
        try:
            await apply(profile, place.library, place.kubelet, say=lines.append, agree=lambda: True)
        except GpuPluginError as error:
            self._tell("MigProfileWaits", f"{profile}: {error}", is_warning=True)
            return False
        for line in lines:
            _log.info("mig", text=line)
        self._tell("MigProfileApplied", f"the cards are cut as {profile} asks", is_warning=False)
        return True

    def _tell(self, reason: str, text: str, *, is_warning: bool) -> None:
        if text != self._said:
            self._said = text
            _log.warning("mig", text=text) if is_warning else _log.info("mig", text=text)
            self._events.post(EventNote(None, reason, text, is_warning))
