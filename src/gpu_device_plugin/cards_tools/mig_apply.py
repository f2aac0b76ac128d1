"""`gpu-device-plugin mig apply`: cut the cards of this node, where nobody uses them.

With `--watch` as the node's label asks, as soon as they are free. Who uses a card is asked of everything
that knows: nothing is changed on a card that is somebody's.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_device_plugin.cards_tools.node_label import NodeLabel
from gpu_device_plugin.disk.locks import only_one
from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.domain.node.modes import MIG_PROFILE_LABEL
from gpu_device_plugin.domain.nvidia.mig_devices import Cut, plan
from gpu_device_plugin.errors import EdgeError, GpuPluginError
from gpu_device_plugin.install_hooks.pods_of_kubelet import pods_with_gpus
from gpu_device_plugin.kubelet.unix_sockets import kubelet_pid
from gpu_device_plugin.kubernetes.client.api import ApiServer
from gpu_device_plugin.kubernetes.objects.events import EventNote, Events
from gpu_device_plugin.nvml.card_session import CardSession, session


async def apply(
    profile: str,
    library: str,
    kubelet: Path,
    *,
    say: Callable[[str], None],
    agree: Callable[[], bool],
) -> bool:
    """Cut every card that is not cut so already; all of them are free, or none is touched.

    It may be interrupted anywhere: the next call destroys what was half made and begins again.
    `profile` is `MIG1g` … `MIG7g`, or a profile's own name. `say` gets lines for people, first what
    would be destroyed; then `agree` decides. Returns whether every card is cut so now.

    Raises:
        ConfigError: No card can be cut so.
        EdgeError: Somebody uses a card, or it is not known; another process cuts cards; or NVML
            refused a step.
    """
    with only_one(kubelet, "one process at a time may cut the cards"), session(library) as nvml:
        nvml.require_all()
        cuts = plan(nvml.cards, profile)
        for cut in cuts:
            say(str(cut))
        due = [cut for cut in cuts if not cut.is_done]
        if due and not await _are_free_and_agreed(nvml, due, kubelet, agree):
            return False
        for cut in due:
            _carry_out(nvml, cut)
            say(f"card {cut.card.index} ({cut.card.uuid}): is cut")
        return True


async def _are_free_and_agreed(
    nvml: CardSession, due: Sequence[Cut], kubelet: Path, agree: Callable[[], bool]
) -> bool:
    """Asked before a person is, and again after: that may take long."""
    cards = [cut.card for cut in due]
    await refuse_users(nvml, cards, kubelet)
    if not agree():
        return False
    await refuse_users(nvml, cards, kubelet)
    return True


def _carry_out(nvml: CardSession, cut: Cut) -> None:
    profile = cut.profile
    if not cut.card.is_mig:
        nvml.turn_mig_on(cut.card)
    nvml.destroy_instances(cut.card)
    for _ in range(profile.count):
        nvml.create_instance(cut.card, profile.compute_slices, profile.memory_slices, profile.kind)


_log = structlog.get_logger(__name__)


class InUseError(EdgeError):
    """A card is not changed, because somebody uses it, or could unseen; the text names every user."""


def refuse_where_hidden(kubelet: Path) -> None:
    """InUseError unless NVML and procfs show the node's processes here, not those of a pod only."""
    if not kubelet_pid(kubelet / "pod-resources" / "kubelet.sock"):
        raise InUseError(
            "not changed: this pid namespace does not show the kubelet, so processes of the node or "
            "of other containers may use a card unseen; run this on the node, or in a pod with hostPID"
        )


async def refuse_users(nvml: CardSession, cards: Sequence[CardReport], kubelet: Path) -> None:
    """InUseError if anybody uses these cards, a pod holds a GPU, or users are not seen here."""
    holders = await pods_with_gpus(kubelet)
    refuse_where_hidden(kubelet)
    users = [f"{pod} holds GPUs" for pod in holders]
    users += [
        f"{user} uses card {card.index} ({card.uuid})"
        for card in cards
        for user in nvml.users(card)
    ]
    if users:
        raise InUseError("in use, and not changed:" + "".join(f"\n  {user}" for user in users))


@dataclass(frozen=True, slots=True)
class NodeToCut:
    """The node to cut, and how its driver and kubelet are reached."""

    name: str
    library: str
    kubelet: Path
    retry_seconds: float = 30.0


class MigWatch:
    """Follows the label of one node; a card that is in use is tried again."""

    def __init__(self, api: ApiServer, place: NodeToCut) -> None:
        self._place = place
        self._events = Events(api, place.name)
        self._label = NodeLabel(api, place.name, MIG_PROFILE_LABEL)
        self._said = ""

    async def run(self) -> None:
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
            _log.info("MIG step", text=line)
        self._tell("MigProfileApplied", f"the cards are cut as {profile} asks", is_warning=False)
        return True

    def _tell(self, reason: str, text: str, *, is_warning: bool) -> None:
        if text != self._said:
            self._said = text
            log = _log.warning if is_warning else _log.info
            log("node reported", reason=reason, text=text)
            self._events.post(EventNote(None, reason, text, is_warning))
