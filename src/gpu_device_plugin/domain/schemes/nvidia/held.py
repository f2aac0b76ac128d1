"""Cards that wait: what pods hold of a card outlives the configuration under which they got it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.schemes.nvidia.offers import Offered, Offers, device_of


def with_held(found: Offers, cards: Sequence[Card], grants: Iterable[Grant]) -> Offers:
    """The offers, with each card that waits offered as what is held of it, and as nothing else.

    A card waits while a pod holds a unit of it that the configuration does not offer. So no card
    is given away under two configurations at once, and the others change at once. It follows from
    the grants alone, so that it outlives a restart of the agent.

    Args:
        found: By the configuration in force.
        cards: The node's.
        grants: What is held.
    """
    if found.problem:
        return found  # nothing of the node is offered, and the problem says why
    held = [*_held(cards, grants)]
    offered = {(name, d.id) for name, devices in found.resources.items() for d in devices}
    pods: dict[str, set[str]] = {}
    for resource, unit, pod in held:
        if (resource, unit.id) not in offered:
            pods.setdefault(unit.card.uuid, set()).add(pod)
    if not pods:
        return found
    resources = {
        name: [each for each in devices if each.card.uuid not in pods]
        for name, devices in found.resources.items()
    }
    for resource, unit, _ in held:
        if unit.card.uuid in pods:
            resources.setdefault(resource, []).append(unit)
    return replace(
        found,
        resources={name: tuple(devices) for name, devices in sorted(resources.items()) if devices},
        waiting=(
            *found.waiting,
            *(_text(card, pods[card.uuid]) for card in cards if card.uuid in pods),
        ),
    )


def _held(cards: Iterable[Card], grants: Iterable[Grant]) -> Iterator[tuple[str, Offered, str]]:
    """Resource, unit and pod, as far as the card or instance is still there."""
    there = _devices(cards)
    for grant in grants:
        for resource, ids in grant.units.items():
            for unit in ids:
                device = there.get(device_of(unit))
                if device is not None:
                    yield resource, _unit(device, unit), str(grant.pod)


def _devices(cards: Iterable[Card]) -> dict[str, Offered]:
    """UUID -> the card or instance as it is now."""
    found = {card.uuid: Offered(card.uuid, card) for card in cards if not card.hardware.is_mig}
    for card in cards:
        if card.hardware.is_mig:
            found |= {i.uuid: Offered(i.uuid, card, i) for i in card.hardware.instances}
    return found


def _unit(device: Offered, unit: str) -> Offered:
    """A replica's number of siblings is not known any more; that it has some is."""
    return replace(device, id=unit, replicas=1 if unit == device.id else 2)


def _text(card: Card, pods: Collection[str]) -> str:
    return (
        f"card {card.index} ({card.uuid}) keeps what pods hold of it under the previous configuration "
        f"and offers nothing else, until they end: {', '.join(sorted(pods))}"
    )
