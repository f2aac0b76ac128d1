"""Who uses a card, by everything that knows: nothing is changed on a card that is somebody's."""

from collections.abc import Sequence
from pathlib import Path

from gpu_device_plugin.domain.cards.nvml_reports import CardReport
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.install_hooks.pods_of_kubelet import pods_with_gpus
from gpu_device_plugin.kubelet.plugin_directory import kubelet_pid
from gpu_device_plugin.nvml.card_session import CardSession


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
