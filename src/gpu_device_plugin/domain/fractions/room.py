"""Room: what a card has left for a pod, for the agent and the controller alike; most pods, and most units in a list."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit, MiB, Units
from gpu_device_plugin.domain.fractions.fragmentation import WHOLE_CARD_MILLI
from gpu_device_plugin.domain.fractions.request_rules import CORE_STEP_PERCENT
from gpu_device_plugin.domain.fractions.slice_size import slice_mib
from gpu_device_plugin.domain.fractions.units import (
    CORE_UNITS_PER_CARD,
    Resource,
    resources_of,
    units_of,
)
from gpu_device_plugin.domain.grants.grant import Demand
from gpu_device_plugin.domain.grants.ledger import DeviceUse, Ledger
from gpu_device_plugin.domain.node.modes import NodeMode, is_isolated
from gpu_device_plugin.domain.node.pods import PodRef
from gpu_device_plugin.domain.node.state import NodeTerms
from gpu_device_plugin.errors import ConfigError

MAX_PODS_PER_CARD = 16
"""Most pods per card in modes with isolation, whatever the unit (R-405)."""
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""Half of what the kubelet's gRPC client accepts of a ListAndWatch message."""
# What a device takes besides its id: the tag and length of the device, of its id and of its
# health, and the longer of the two healths, "Unhealthy".
_DEVICE_BYTES = 2 + 2 + 2 + len("Unhealthy")
_SHORTEST_ID = 3
_BASE = 36


def most_pods(mode: NodeMode, by_label: int | None) -> int | None:
    """Most pods a card, or None for no limit: 16 with isolation (R-405), or less by the label."""
    limits = [MAX_PODS_PER_CARD] if is_isolated(mode) else []
    return min([*limits, *([] if by_label is None else [by_label])], default=None)


def list_message_bytes(resource: str, cards: Sequence[Card], unit: MemoryUnit) -> int:
    """Size of the ListAndWatchResponse with every unit of `cards` unhealthy."""
    return sum(_device_list_bytes(units_of(card, resource, unit)) for card in cards)


def check_message(cards: Sequence[Card], unit: MemoryUnit, mode: NodeMode) -> None:
    """Raise ConfigError if a device list would exceed `MAX_MESSAGE_BYTES`; the text names the unit to set."""
    for resource in resources_of(mode):
        size = list_message_bytes(resource, cards, unit)
        if size > MAX_MESSAGE_BYTES:
            raise ConfigError(
                f"memory unit {unit.value} makes the device list of {resource} {size} bytes long, "
                f"the limit is {MAX_MESSAGE_BYTES}: {_cure(resource, cards)}"
            )


def _device_list_bytes(units: int) -> int:
    total, length, first = 0, _SHORTEST_ID, 0
    while first < units:
        end = min(units, _BASE ** (length - _SHORTEST_ID + 1))
        total += (end - first) * (_DEVICE_BYTES + length)
        length, first = length + 1, end
    return total


def _cure(resource: str, cards: Sequence[Card]) -> str:
    for unit in sorted(MemoryUnit, key=lambda unit: unit.mib):
        if list_message_bytes(resource, cards, unit) <= MAX_MESSAGE_BYTES:
            return f"the smallest unit that fits {len(cards)} cards is {unit.value}"
    return f"no unit fits {len(cards)} cards of this size"


@dataclass(frozen=True, slots=True)
class Room:
    """What one card has left for one pod.

    Attributes:
        free_mem: Memory units that are not held; units of the pod's own init containers count too.
        free_core: Percent of compute that is not held.
        pods: Pods that hold anything on it, the asking pod included if it does.
        least_core: Compute that every container of this mode takes at least.
        is_closed: Whether another pod has the card for itself: then nothing of it is free.
        has_strangers: Whether programs without a grant hold memory of it.
    """

    card: Card
    is_healthy: bool
    free_mem: Units
    free_core: int
    pods: int
    holds_pod: bool
    unit: MemoryUnit = MemoryUnit.GIB
    max_pods: int | None = None
    least_core: int = 0
    is_closed: bool = False
    has_strangers: bool = False

    @property
    def amounts(self) -> tuple[int, ...]:
        """The values that describe the card and not its node; cards with equal values get equal answers."""
        return (
            self.free_mem,
            self.free_core,
            self.pods,
            self.card.memory_mib,
            self.is_healthy,
            self.is_closed,
        )

    @property
    def is_full_of_pods(self) -> bool:
        """Whether the asking pod would be one too many; one that is here already is not."""
        return self.max_pods is not None and not self.holds_pod and self.pods >= self.max_pods

    @property
    def free_milli(self) -> int:
        """The free part of the card in thousandths: that of memory or of compute, the smaller one.

        Nothing, where no further pod may come.
        """
        is_full = self.max_pods is not None and self.pods >= self.max_pods
        if not self.is_healthy or self.is_closed or is_full:
            return 0
        free = WHOLE_CARD_MILLI * self.free_mem // max(1, self.card.capacity(self.unit))
        if self.least_core:
            free = min(free, WHOLE_CARD_MILLI * self.free_core // CORE_UNITS_PER_CARD)
        return min(free, WHOLE_CARD_MILLI)

    @property
    def free_slice_mib(self) -> MiB:
        """The largest slice that is free, 0 where nothing is."""
        return slice_mib(self.card, self.free_mem, self.unit) if self.free_mem else MiB(0)

    def without(self, units: Units, percent: int, pods: int, *, is_closed: bool = False) -> "Room":
        """The room with this much less of it, and so many pods more; `is_closed`: one has the card for itself."""
        is_closed = is_closed or self.is_closed
        return replace(
            self,
            free_mem=Units(0 if is_closed else max(0, self.free_mem - units)),
            free_core=0 if is_closed else max(0, self.free_core - percent),
            pods=self.pods + pods,
            is_closed=is_closed,
        )

    def left_milli(self, demand: Demand) -> int:
        """The part of the card that would be free, as in `free_milli`, with a container of this demand on it."""
        core, is_new = max(demand.core_percent, self.least_core), not self.holds_pod
        alone = demand.is_exclusive
        return self.without(demand.units_per_card, core, int(is_new), is_closed=alone).free_milli

    def lack(self, demand: Demand) -> str | None:
        """Why a container of this demand does not fit here, for people; None where it does."""
        core = max(demand.core_percent, self.least_core)
        if why := self._refuses(demand):
            return why
        if self.free_mem < max(1, demand.units_per_card):
            return f"{self.free_mem} of {self.card.capacity(self.unit)} units free"
        if self.free_core < core:
            return f"{self.free_core} % compute free, {self.free_mem} units free"
        return None

    def is_apart(self, demand: Demand) -> bool:
        """Whether a pod that is here, or the one that asks, wants the card for itself."""
        return self.is_closed or (demand.is_exclusive and self.pods > self.holds_pod)

    def _refuses(self, demand: Demand) -> str:
        """Why this card is nothing for the pod, whatever is free; or ""."""
        others = self.pods - self.holds_pod
        if not self.is_healthy:
            return "unhealthy"
        if self.is_closed:
            return "held by a pod that wants no other beside it"
        if demand.is_exclusive and others:
            return f"{others} other pods"
        return f"{self.pods} pods, at most {self.max_pods}" if self.is_full_of_pods else ""


def rooms(
    cards: Iterable[Card],
    healthy: Mapping[str, bool],
    ledger: Ledger,
    terms: NodeTerms,
    pod: PodRef,
) -> tuple[Room, ...]:
    """What each card has left for the next container of `pod`, by NVML index.

    A card that `healthy` does not name may not serve; at admission `ledger` is the live part.
    """
    before, held, blank = ledger.before(pod), ledger.use(), DeviceUse()
    free_for_pod = held if before is ledger else before.use()
    return tuple(
        room_of(
            card,
            replace(free_for_pod.get(card.uuid, blank), pods=held.get(card.uuid, blank).pods),
            terms,
            is_healthy=healthy.get(card.uuid, False),
            pod=pod,
        )
        for card in sorted(cards, key=lambda card: card.index)
    )


def room_of(
    card: Card, use: DeviceUse, terms: NodeTerms, *, is_healthy: bool, pod: PodRef | None = None
) -> Room:
    """What a card has left where `use` is held of it; `pod` asks, or (None) one that holds nothing."""
    holds_pod = pod is not None and any(tenant.is_same_pod(pod) for tenant in use.pods)
    # A pod known by name only and the same one by name and uid count once.
    tenants = {tenant.key if tenant.name else ("", tenant.uid) for tenant in use.pods}
    is_free = holds_pod or not use.is_exclusive
    free_mem = card.capacity(terms.unit) - terms.unit.count(use.memory_mib)
    return Room(
        card=card,
        is_healthy=is_healthy,
        free_mem=Units(max(0, free_mem) if is_free else 0),
        free_core=max(0, units_of(card, Resource.CORE, terms.unit) - use.core_percent)
        if is_free
        else 0,
        pods=len(tenants),
        holds_pod=holds_pod,
        unit=terms.unit,
        max_pods=most_pods(terms.mode, terms.max_pods),
        least_core=CORE_STEP_PERCENT if Resource.CORE in resources_of(terms.mode) else 0,
        is_closed=not is_free,
    )


def at_most(room: Room, resource: str, free: int) -> Room:
    """The same room, with at most as much of `resource` as the kubelet has free there."""
    if resource == Resource.MEM:
        return replace(room, free_mem=Units(min(room.free_mem, free)))
    if resource == Resource.CORE:
        return replace(room, free_core=min(room.free_core, free))
    return room
