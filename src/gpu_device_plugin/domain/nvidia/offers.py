"""What a node offers under NVIDIA's names: its cards and a configuration, turned into resources."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.cards.card import UNKNOWN, Card, Instance
from gpu_device_plugin.domain.nvidia.configuration import (
    GPU,
    AllocationPolicy,
    Configuration,
    MigStrategy,
    Pattern,
    SharedResource,
    Sharing,
    SharingKind,
)
from gpu_device_plugin.domain.nvidia.links import best_linked
from gpu_device_plugin.domain.nvidia.mig_devices import resource_of
from gpu_device_plugin.errors import DoesNotFitError, LayoutError, RequestError

_REPLICA = "::"
_TURING = (7, 5)
_MOST_REPLICAS, _MOST_REPLICAS_OLD = 48, 16
_LIST_BYTES = 4 << 20
"""A kubelet takes a list of devices in one message, of at most so many bytes."""
_DEVICE_BYTES = 32
"""Of a device in that message, beside its id: health, NUMA node and framing."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One device of a resource as the kubelet counts it: `GPU-…` or `MIG-…`, with `::<n>` for a replica."""

    id: str
    card: Card
    instance: Instance | None = None
    replicas: int = 1

    @property
    def uuid(self) -> str:
        """The card's or instance's UUID, without the replica."""
        return self.id.partition(_REPLICA)[0]

    @property
    def index(self) -> str:
        """As NVIDIA's runtime takes it: `0`, or `0:1` for an instance."""
        own = "" if self.instance is None else f":{self.instance.index}"
        return f"{self.card.index}{own}"


Resources = Mapping[str, tuple[Offered, ...]]


def device_of(unit: str) -> str:
    """The UUID of the card or instance that a unit is of."""
    return unit.partition(_REPLICA)[0]


def replicate(plain: Mapping[str, list[Offered]], sharing: Sharing, notes: list[str]) -> Resources:
    """The devices with those of each entry of `sharing` replaced by their replicas; adds to `notes`."""
    found = {name: list(devices) for name, devices in plain.items()}
    shared: dict[str, list[Offered]] = {}
    taken: set[str] = set()
    for entry in sharing.resources:
        chosen = _choose(entry, plain.get(entry.name, []), taken, notes)
        uuids = {device.id for device in chosen}
        if uuids & taken:
            raise LayoutError(
                f"{entry.name}: device {min(uuids & taken)} is replicated by two entries of sharing"
            )
        taken |= uuids
        for device in chosen:
            _check_replicas(entry, device, sharing.kind)
        name = sharing.new_name(entry)
        others = [each for each in found.get(name, []) if each.id not in uuids]
        room = _LIST_BYTES - _list_bytes([*others, *shared.get(name, [])])
        fitting = min(entry.replicas, room // max(1, _list_bytes(chosen)))
        if fitting < entry.replicas:
            notes.append(
                f"{name}: {fitting} of {entry.replicas} replicas of each card are offered: a kubelet takes a "
                f"list of {_LIST_BYTES} bytes"
            )
        if chosen:
            found[entry.name] = [each for each in found[entry.name] if each.id not in uuids]
            shared.setdefault(name, []).extend(
                Offered(f"{device.id}{_REPLICA}{n}", device.card, device.instance, entry.replicas)
                for device in chosen
                for n in range(fitting)
            )
    for name, replicas in shared.items():
        found[name] = [*found.get(name, []), *replicas]
    return {name: tuple(devices) for name, devices in sorted(found.items()) if devices}


def _list_bytes(devices: Iterable[Offered]) -> int:
    """What so many devices, or one replica of each, take at most in a list."""
    return sum(len(device.id) + _DEVICE_BYTES for device in devices)


def _choose(
    entry: SharedResource, there: Sequence[Offered], taken: Collection[str], notes: list[str]
) -> list[Offered]:
    """The devices that an entry replicates; none of a resource that this node does not have.

    One that is not there may be lost, and must not make the others unhealthy: a note says so.
    """
    wanted = entry.devices
    if not there or wanted.is_all:
        return list(there)
    if wanted.count:
        if wanted.count > len(there):
            notes.append(
                f"{entry.name}: requested {wanted.count} devices to be replicated, but only "
                f"{len(there)} devices available"
            )
        return list(there[: wanted.count])
    found: dict[str, Offered] = {}
    for reference in wanted.references:
        device = next((each for each in there if reference in {each.uuid, each.index}), None)
        device = device or _find_lost(reference, [d for d in there if d.id not in {*taken, *found}])
        if device is None:
            kind = "with UUID" if "-" in reference else "at index"
            shown = ", ".join(each.index for each in there if each.card.is_shown)
            notes.append(f"{entry.name}: no matching device {kind}: {reference}; it has {shown}")
        else:
            found[device.id] = device
    return list(found.values())


def _find_lost(reference: str, there: Iterable[Offered]) -> Offered | None:
    """The device of a card that NVML shows no more, for an index that no card has now.

    One lost card must not make the others unhealthy. Its number is the index that it had, but on
    nodes where a card was replaced.
    """
    place, _, part = reference.partition(":")
    if not place.isdecimal():
        return None
    lost = [
        each for each in there if not each.card.is_shown and each.index.partition(":")[2] == part
    ]
    return next((each for each in lost if each.card.number == int(place)), next(iter(lost), None))


def _check_replicas(entry: SharedResource, device: Offered, kind: SharingKind) -> None:
    """MPS has a limit of clients, and knows no MIG (R-704). A card of the last run has not told its hardware."""
    if kind is not SharingKind.MPS or device.card.hardware == UNKNOWN:
        return
    if device.instance is not None:
        raise LayoutError(f"{entry.name}: MPS sharing is not supported for MIG devices")
    is_new = device.card.hardware.compute_capability >= _TURING
    most = _MOST_REPLICAS if is_new else _MOST_REPLICAS_OLD
    if entry.replicas > most:
        raise LayoutError(
            f"{entry.name}: maximum allowed replicas exceeded: {entry.replicas} > {most} on card "
            f"{device.card.index}"
        )


def choose_preferred(
    offered: Sequence[Offered],
    available: Collection[str],
    must_include: Collection[str],
    size: int,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """Exactly `size` ids, those of `must_include` first.

    Whole cards are chosen by their links; replicas and instances one after the other from the
    card with the fewest taken (distributed) or with the most (packed).

    `available` is in no order, and may name ids of a list that the kubelet has not replaced yet:
    those are not chosen. `policy` is for replicas and instances.

    Raises:
        RequestError: An id of `must_include` is not one of this resource.
        DoesNotFitError: There are too few.
    """
    unknown = sorted(set(must_include) - {device.id for device in offered})
    if unknown:
        raise RequestError(f"unknown device: {', '.join(unknown)}", reason="UnknownDevice")
    usable = set(available) | set(must_include)
    free = [device for device in offered if device.id in usable]
    if len(free) < size:
        raise DoesNotFitError(
            f"not enough available devices to satisfy allocation: {size} asked, {len(free)} free",
            reason="NoDevice",
        )
    if all(device.replicas == 1 and device.instance is None for device in free):
        points = {device.id: device.card.hardware.links for device in free}
        return best_linked(points, list(points), [i for i in points if i in must_include], size)
    return _over_cards(offered, free, must_include, size, policy)


def _over_cards(
    offered: Sequence[Offered],
    free: Sequence[Offered],
    must_include: Collection[str],
    size: int,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """One after the other; ties go to a card that this call has picked least, then to the lowest."""
    candidates = [device for device in free if device.id not in must_include]
    taken = Counter(device.card.uuid for device in offered)
    taken.subtract(device.card.uuid for device in candidates)
    sign = 1 if policy is AllocationPolicy.DISTRIBUTED else -1
    given = [device for device in free if device.id in must_include]
    chosen, picked = [d.id for d in given], Counter(d.card.uuid for d in given)
    while len(chosen) < size:
        first = min(candidates, key=lambda d: (sign * taken[d.card.uuid], picked[d.card.uuid]))
        candidates.remove(first)
        taken[first.card.uuid] += 1
        picked[first.card.uuid] += 1
        chosen.append(first.id)
    return tuple(chosen)


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
    by_resource: dict[str, list[Offered]] = {}
    for card in whole:
        name = _match(configuration.gpu_patterns, card.model) or GPU
        by_resource.setdefault(name, []).append(Offered(card.uuid, card))
    for card in cut if strategy is not MigStrategy.NONE else ():
        for instance in filter(lambda each: each.is_whole, card.hardware.instances):
            default = GPU if strategy is MigStrategy.SINGLE else resource_of(instance.profile)
            name = _match(configuration.mig_patterns, instance.profile) or default
            by_resource.setdefault(name, []).append(Offered(instance.uuid, card, instance))
    return by_resource


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
