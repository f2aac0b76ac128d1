"""`gpu-device-plugin mig apply`: cut the cards of this node, where nobody uses them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_device_plugin.apps.cards.users import refuse_users
from gpu_device_plugin.domain.schemes.nvidia.mig import Cut, plan
from gpu_device_plugin.nvml.session import Session, session
from gpu_device_plugin.store.lock import only_one


async def apply(
    profile: str,
    library: str,
    kubelet: Path,
    *,
    say: Callable[[str], None],
    agree: Callable[[], bool],
) -> bool:
    """Cut every card that is not cut so already; all of them are free, or none is touched.

    It may be interrupted anywhere: the next call destroys what was half made and begins anew.

    Args:
        profile: `MIG1g` … `MIG7g`, or a profile's own name.
        library: Path of libnvidia-ml.so.1; "" for the system's.
        kubelet: The kubelet's directory.
        say: Takes lines for people: first what would be destroyed.
        agree: Called when that has been said; with False nothing is done.

    Returns:
        Whether every card is cut so now.

    Raises:
        ConfigError: No card can be cut so.
        EdgeError: Somebody uses a card, or it is not known; another process cuts cards; or NVML
            refused a step.
    """
    with only_one(kubelet, "the cards are not cut twice at once"), session(library) as nvml:
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
    nvml: Session,
    due: Sequence[Cut],
    kubelet: Path,
    agree: Callable[[], bool],
) -> bool:
    """Asked before a person is, and again after: that may take long."""
    cards = [cut.card for cut in due]
    await refuse_users(nvml, cards, kubelet)
    if not agree():
        return False
    await refuse_users(nvml, cards, kubelet)
    return True


def _carry_out(nvml: Session, cut: Cut) -> None:
    profile = cut.profile
    if not cut.card.is_mig:
        nvml.turn_mig_on(cut.card)
    nvml.destroy_instances(cut.card)
    for _ in range(profile.count):
        nvml.create_instance(cut.card, profile.compute_slices, profile.memory_slices, profile.kind)
