"""What has to be done to cards so that they are cut into a profile (R-203, R-207)."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.hardware import UNKNOWN, Hardware
from gpu_device_plugin.domain.reports import CardReport
from gpu_device_plugin.domain.schemes.nvidia.mig import Profile, cut_command, profile_of
from gpu_device_plugin.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cut:
    """One card to be cut.

    Attributes:
        card: The card as it is.
        profile: What it is to be cut into, as many times as it has room for.
    """

    card: CardReport
    profile: Profile

    @property
    def is_done(self) -> bool:
        """Whether it is cut so already."""
        return is_cut(self.card.hardware, self.profile)

    def __str__(self) -> str:
        """What is there, what goes, and what comes, in one line."""
        name = f"card {self.card.index} ({self.card.uuid})"
        wanted = f"{self.profile.count} x {self.profile.name}"
        if self.is_done:
            return f"{name}: is cut into {wanted} already"
        steps = [] if self.card.is_mig else ["MIG mode is turned on"]
        instances = self.card.hardware.instances
        if instances:
            gone = ", ".join(f"{each.profile} {each.uuid}" for each in instances)
            steps.append(f"{len(instances)} instances are destroyed ({gone})")
        return f"{name}: {'; '.join([*steps, f'it is cut into {wanted}'])}"


def is_cut(hardware: Hardware, profile: Profile) -> bool:
    """Whether a card is in MIG mode and has the profile in full number and nothing else."""
    names = [each.profile for each in hardware.instances if each.is_whole]
    return hardware.is_mig and names == [profile.name] * profile.count


def uncut(cards: Sequence[Card], asked: str) -> str:
    """Why cards are not what the node's MIG profile asks for, and how to cut them; "" if they are.

    Args:
        cards: All of the node.
        asked: `MIG1g` … `MIG7g`, or a profile's own name.
    """
    capable = [card for card in cards if card.hardware.is_mig_capable]
    if any(card.hardware == UNKNOWN for card in cards):
        return ""  # a card of the last run, of which NVML has not said yet how it is cut
    if not capable:
        return f"MIG profile {asked}: no card of this node can be in MIG mode"
    try:
        wanted = [(card, profile_of(asked, card.model, card.memory_mib)) for card in capable]
    except ConfigError as error:
        return str(error)
    commands = [
        cut_command(card.index, profile)
        for card, profile in wanted
        if not is_cut(card.hardware, profile)
    ]
    if not commands:
        return ""
    return (
        f"{len(commands)} of {len(capable)} cards are not cut as the MIG profile {asked} says: run "
        f"`gpu-device-plugin mig apply {asked}`, or {'; '.join(commands)}"
    )


def plan(cards: Sequence[CardReport], asked: str) -> tuple[Cut, ...]:
    """How each card that can be in MIG mode is to be cut.

    Args:
        cards: All of the node.
        asked: `MIG1g` … `MIG7g`, or a profile's own name.

    Raises:
        ConfigError: No card can be in MIG mode, or one that can has no such profile.
    """
    capable = [card for card in cards if card.hardware.is_mig_capable]
    if not capable:
        models = ", ".join(sorted({card.model for card in cards})) or "no cards at all"
        raise ConfigError(f"no card of this node can be in MIG mode; it has {models}")
    return tuple(Cut(card, profile_of(asked, card.model, card.memory_mib)) for card in capable)
