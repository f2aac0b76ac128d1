"""Who uses a card, by everything that knows: nothing is changed on a card that is somebody's."""

from collections.abc import Sequence
from pathlib import Path

from gpu_device_plugin.domain.cards.reports import CardReport
from gpu_device_plugin.errors import EdgeError
from gpu_device_plugin.install_hooks.pods_of_kubelet import pods_with_gpus
from gpu_device_plugin.kubelet.kubelet_process import kubelet_pid
from gpu_device_plugin.nvml.card_session import CardSession


class InUseError(EdgeError):
    """A card is not changed, because somebody uses it, or could unseen; the text names every user."""


def refuse_where_hidden(kubelet: Path) -> None:
    """Check that the node's processes are seen from here: NVML and procfs show those of our namespace.

    Args:
        kubelet: The kubelet's directory.

    Raises:
        InUseError: They are not.
        KubeletError: The kubelet does not answer.
    """
    if not kubelet_pid(kubelet / "pod-resources" / "kubelet.sock"):
        raise InUseError(
            "not changed: this pid namespace does not show the kubelet, so processes of the node or "
            "of other containers may use a card unseen; run this on the node, or in a pod with hostPID"
        )


async def refuse_users(nvml: CardSession, cards: Sequence[CardReport], kubelet: Path) -> None:
    """Check that nobody uses these cards, and that no pod of the node holds a GPU.

    Args:
        nvml: NVML.
        cards: The cards that will be changed.
        kubelet: The kubelet's directory.

    Raises:
        InUseError: Somebody does, or it is not seen from here.
        KubeletError: The kubelet does not say.
        NvmlError: NVML does not say.
    """
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
