"""Claims (DRA): what is offered for them, and what is allocated to one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.pods import ObjectRef, PodRef
from gpu_device_plugin.domain.node.state import NodeState

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


def cards_by_name(state: NodeState) -> dict[str, Card]:
    """The node's cards by the names of their devices."""
    return {device_name(card): card for card in state.cards}


def taints(uuid: str, state: NodeState) -> dict[str, str]:
    """Why nothing new may be allocated of a card: key -> value."""
    reason = next(iter(state.faults), "") or state.unhealthy.get(uuid, "")
    found = {f"{DRIVER}/unhealthy": reason, f"{DRIVER}/uninstall": "true" if state.mark else ""}
    return {key: value for key, value in found.items() if value}


def allocated_pods(claims: Iterable[Claim], node: str) -> tuple[str, ...]:
    """For people: the pods of the claims to which cards of this node are allocated, prepared or not."""
    here = (
        str(claim.pod or claim.ref)
        for claim in claims
        if any(each.driver == DRIVER and each.pool == node for each in claim.devices)
    )
    return tuple(sorted(set(here)))


def has_claims(ledger: Ledger) -> bool:
    """Whether any claim holds a slice."""
    return any(grant.holder.claim for grant in ledger.grants.values())


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
