"""What a node offers under NVIDIA's names: its cards and a configuration, turned into resources."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.nvidia.configuration import GPU, Configuration, MigStrategy, Pattern
from gpu_device_plugin.domain.nvidia.mig_devices import resource_of
from gpu_device_plugin.domain.nvidia.replicas import Offered, Resources, replicate
from gpu_device_plugin.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Offers:
    """What is offered, by card and instance, why nothing is, and what is to be said of it."""

    resources: Resources = field(default_factory=dict)
    problem: str = ""
    notes: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def offers(cards: Sequence[Card], configuration: Configuration) -> Offers:
    """What `cards`, by NVML index, are offered as; the configuration is checked already."""
    # The first so many of `devices` are of those that are there: a lost card has no index, and is last.
    cards = sorted(cards, key=lambda card: not card.is_shown)
    notes = list(_notes(cards, configuration.mig_strategy))
    try:
        plain = _plain(cards, configuration)
        return Offers(replicate(plain, configuration.sharing, notes), notes=tuple(notes))
    except LayoutError as error:
        return Offers(problem=str(error), notes=tuple(notes))


def _plain(cards: Sequence[Card], configuration: Configuration) -> dict[str, list[Offered]]:
    """Resource -> devices, without replicas."""
    strategy = configuration.mig_strategy
    whole = [card for card in cards if not card.hardware.is_mig]
    cut = [card for card in cards if card.hardware.is_mig]
    if strategy is MigStrategy.SINGLE:
        _check_single(whole, cut)
    found: dict[str, list[Offered]] = {}
    for card in whole:
        name = _match(configuration.gpu_patterns, card.model) or GPU
        found.setdefault(name, []).append(Offered(card.uuid, card))
    for card in cut if strategy is not MigStrategy.NONE else ():
        for instance in filter(lambda each: each.is_whole, card.hardware.instances):
            default = GPU if strategy is MigStrategy.SINGLE else resource_of(instance.profile)
            name = _match(configuration.mig_patterns, instance.profile) or default
            found.setdefault(name, []).append(Offered(instance.uuid, card, instance))
    return found


def _match(patterns: Iterable[Pattern], text: str) -> str:
    """The resource of the first pattern that matches, or ""."""
    return next((each.name for each in patterns if each.matches(text)), "")


def _check_single(whole: Sequence[Card], cut: Sequence[Card]) -> None:
    """Strategy single offers one kind of device (R-707)."""
    if not cut:
        return
    empty = next((card for card in cut if not card.hardware.instances), None)
    if empty is not None:
        raise LayoutError(
            "invalid MIG configuration: at least one device with migEnabled=true was not "
            f"configured correctly: device {empty.index} has no MIG devices configured"
        )
    profiles = {instance.profile for card in cut for instance in card.hardware.instances}
    if len(profiles) > 1:
        raise LayoutError(
            "invalid MIG configuration: more than one MIG device type present on node: "
            f"{', '.join(sorted(profiles))}"
        )
    if whole:
        raise LayoutError(
            "invalid MIG configuration: all devices on the node must be configured with the same "
            f"migEnabled value: {_places(cut)} in MIG mode, {_places(whole)} not"
        )


def _notes(cards: Iterable[Card], strategy: MigStrategy) -> Iterable[str]:
    for card in cards:
        if not card.hardware.is_mig:
            continue
        name = f"card {card.index} ({card.uuid})"
        if strategy is MigStrategy.NONE:
            yield f"{name} is in MIG mode and left out: the MIG strategy is none"
        elif not card.hardware.instances:
            yield f"{name} is in MIG mode and has no MIG devices configured"
        for instance in card.hardware.instances if strategy is not MigStrategy.NONE else ():
            if not instance.is_whole:
                yield (
                    f"instance {card.index}:{instance.index} ({instance.profile}) is left out: it "
                    f"has {instance.compute_slices} of the {instance.gpu_slices} compute slices of "
                    f"its GPU instance"
                )


def _places(cards: Iterable[Card]) -> str:
    return "cards " + ", ".join(str(card.index) for card in cards)
