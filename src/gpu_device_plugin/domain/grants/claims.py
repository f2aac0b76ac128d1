"""Claims (DRA): what is offered for them, and what is allocated to one."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import ObjectRef, PodRef
from gpu_device_plugin.domain.node.state import DeviceGroup, NodeState, Pool
from gpu_device_plugin.errors import DoesNotFitError

DRIVER = "gpu-device-plugin"
MAX_SLOTS = 16
"""Most claims a card, as the scheduler counts them."""


@dataclass(frozen=True, slots=True)
class ClaimRef(ObjectRef):
    """Which ResourceClaim."""


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One entry of a claim's allocation, with what it consumes of the device.

    Our pool is named after the node. `core_percent` is 0 where the device has no such capacity.
    """

    driver: str
    pool: str
    device: str
    request: str = ""
    share_id: str = ""
    memory_mib: MiB = MiB(0)
    core_percent: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim as the API server has it.

    Attributes:
        pod: The pod that it is reserved for, the first of several; None where there is none.
        name_in_pod: Its name in the spec of the pod that it was made for; empty where none names it.
    """

    ref: ClaimRef
    pod: PodRef | None = None
    devices: tuple[AllocatedDevice, ...] = ()
    name_in_pod: str = ""
    owners: frozenset[str] = frozenset()
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that is ready for containers; `cdi_ids` are the names by which a runtime finds it."""

    of: AllocatedDevice
    cdi_ids: tuple[str, ...] = ()


class DeviceHealth(NamedTuple):
    """A device of our pool, and what is wrong with it, or ""."""

    name: str
    fault: str


class PoolHealth(NamedTuple):
    """Our pool, named after the node, and its devices."""

    pool: str
    devices: Sequence[DeviceHealth]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What claims may divide of a card; `core_percent` is 0 where compute is not divided."""

    memory_mib: MiB
    step_mib: MiB
    core_percent: int = 0
    core_step: int = 1
    slots: int = MAX_SLOTS


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A card as claims may get it. The keys and values of `taints` say why nothing new may be allocated of it."""

    card: Card
    mode: str
    capacity: Capacity
    taints: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return device_name(self.card)


def device_name(card: Card) -> str:
    """The name of a card's device: by its number, which stays."""
    return f"gpu-{card.number}"


def cards_for_claims(
    state: NodeState, ledger: Ledger, withheld: Collection[str] = ()
) -> dict[str, str]:
    """UUIDs of the cards that claims may know of, with why nothing new of them is given, or "".

    With allocation API `dra` a card is offered once no units of it are held, with `device-plugin` only
    until the last claim on it has ended. `withheld` are cards of which a claim may be allocated that is not prepared yet.
    """
    if state.allocation_api is AllocationApi.DRA and state.mark and not has_claims(ledger):
        return {}  # a node that is left has no ResourceSlice when the agent ends
    if state.allocation_api is AllocationApi.DRA:
        taken = _held(ledger, by_claims=False)
        return {c.uuid: "" for c in state.cards if c.is_shown and c.uuid not in taken}
    held = cards_behind_claims(state, ledger, withheld)
    return {card.uuid: str(state.allocation_api) for card in state.cards if card.uuid in held}


def cards_behind_claims(
    state: NodeState, ledger: Ledger, withheld: Collection[str] = ()
) -> frozenset[str]:
    """UUIDs of the cards that the device plugin gives nothing new of: with allocation API `dra` all."""
    if state.allocation_api is AllocationApi.DRA:
        return frozenset(card.uuid for card in state.cards)
    return held_by_claims(ledger) | frozenset(withheld)


def cards_by_name(state: NodeState) -> dict[str, Card]:
    """The node's cards by the names of their devices."""
    return {device_name(card): card for card in state.cards}


def check_allocation_api(uuids: Sequence[str], state: NodeState, shown: Ledger | None) -> None:
    """Raise DoesNotFitError while containers hold units of these cards: a card serves one allocation API.

    `shown` are the grants that the kubelet's List or checkpoint shows; None: it has not answered yet.
    """
    if shown is None:
        raise DoesNotFitError(
            f"who holds the cards of node {state.node} is not known yet: the kubelet's PodResources List "
            f"has not answered since the agent's start",
            reason="OtherAllocationApi",
        )
    for uuid in _held(shown, by_claims=False).intersection(uuids):
        pods = ", ".join(sorted({str(g.pod) for g in shown.grants.values() if uuid in g.devices}))
        raise DoesNotFitError(
            f"card {uuid} of node {state.node} is still held through the device plugin by {pods}; "
            f"claims get it when they have ended",
            reason="OtherAllocationApi",
        )


def taints(uuid: str, other_api: str, state: NodeState) -> dict[str, str]:
    """Why nothing new may be allocated of a card: key -> value."""
    reason = next(iter(state.faults), "") or state.unhealthy.get(uuid, "")
    found = {
        f"{DRIVER}/unhealthy": reason,
        f"{DRIVER}/allocation-api": other_api,
        f"{DRIVER}/uninstall": "true" if state.mark else "",
    }
    return {key: value for key, value in found.items() if value}


def pools_behind(
    pools: Sequence[Pool], api: AllocationApi, ledger: Ledger, withheld: Collection[str] = ()
) -> tuple[Pool, ...]:
    """What the device plugin still offers: with allocation API `dra` the units that are held, and no more.

    With its own allocation API all but the cards that claims still hold, or may still be prepared on.
    """
    if api is AllocationApi.DRA:
        ids = ledger.ids()
        return tuple(
            replace(pool, groups=tuple(left for g in pool.groups if (left := _only(g, ids)).ids))
            for pool in pools
        )
    held = held_by_claims(ledger) | frozenset(withheld)
    rest = (
        replace(pool, groups=tuple(group for group in pool.groups if group.card not in held))
        for pool in pools
    )
    return tuple(rest if held else pools)


def allocated_cards(claims: Iterable[Claim], state: NodeState) -> frozenset[str]:
    """UUIDs of this node's cards of which any of these claims has a part."""
    by_name = cards_by_name(state)
    return frozenset(
        by_name[each.device].uuid
        for claim in claims
        for each in claim.devices
        if each.driver == DRIVER and each.pool == state.node and each.device in by_name
    )


def has_claims(ledger: Ledger) -> bool:
    """Whether any claim holds a slice."""
    return any(grant.holder.claim for grant in ledger.grants.values())


def held_by_claims(ledger: Ledger) -> frozenset[str]:
    """UUIDs of the cards of which a prepared claim has a part."""
    return _held(ledger, by_claims=True)


def parts_of(claim: Claim, devices: Sequence[AllocatedDevice]) -> list[Claim]:
    """The claim by its requests, each of which has a grant and a CDI file of its own.

    kube-scheduler makes one claim of a pod whose containers ask for whole cards, with a request for each.
    The uid of a part is `<uid>.<request>`, of an only one that of the claim.
    """
    by_request: dict[str, list[AllocatedDevice]] = {}
    for each in devices:
        by_request.setdefault(each.request, []).append(each)
    if len(by_request) == 1:
        return [replace(claim, devices=tuple(devices))]
    return [
        replace(
            claim, ref=replace(claim.ref, uid=f"{claim.ref.uid}.{request}"), devices=tuple(found)
        )
        for request, found in sorted(by_request.items())
    ]


def claim_uid(part: str) -> str:
    """The uid of the claim of a part.

    >>> claim_uid("7f4f0e1e-1.container-0-request-0"), claim_uid("7f4f0e1e-1")
    ('7f4f0e1e-1', '7f4f0e1e-1')
    """
    return part.partition(".")[0]


def _held(ledger: Ledger, *, by_claims: bool) -> frozenset[str]:
    """Devices of which a claim, or a container by its units, holds anything."""
    return frozenset(
        device
        for grant in ledger.grants.values()
        if bool(grant.holder.claim) is by_claims
        for device in grant.devices
    )


def _only(group: DeviceGroup, ids: frozenset[str]) -> DeviceGroup:
    return replace(group, ids=tuple(text for text in group.ids if text in ids))
