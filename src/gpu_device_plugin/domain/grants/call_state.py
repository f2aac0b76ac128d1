"""A decision for one holder, and the calls of the kubelet that lead to one.

The first call for a container decides for its whole request; the second one follows it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.cards.card import Card
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.grant import Demand, Holder
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.allocation_api import AllocationApi
from gpu_device_plugin.domain.node.pods import PodRef, PodRequest
from gpu_device_plugin.domain.node.state import NodeState
from gpu_device_plugin.errors import DoesNotFitError, RequestError


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a holder is to get, decided and not granted yet.

    Attributes:
        why: Why there, for people.
        rooms: What each card had free when this was decided, for people: a line each.
        request: What its pod asks for; None while the pod spec is not known.
    """

    holder: Holder
    demand: Demand
    cards: tuple[Card, ...]
    why: str
    asked: str = ""
    rooms: tuple[str, ...] = ()
    request: PodRequest | None = None


ADMISSION_SECONDS = 10.0
"""The kubelet's calls for one container follow each other at once; after this long none follows."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A container that is being admitted by the kubelet's calls, one a resource.

    `preferred` are the answers to GetPreferredAllocation, `granted` the resources whose Allocate has come.
    """

    caller: Caller
    chosen: Reservation
    preferred: Mapping[str, frozenset[str]] = field(default_factory=dict)
    granted: frozenset[str] = frozenset()
    slice_id: str = ""

    def is_for(self, caller: Caller) -> bool:
        mine = self.caller.container.name if self.caller.container else None
        theirs = caller.container.name if caller.container else None
        return mine == theirs and self.caller.pod == caller.pod


@dataclass(frozen=True, slots=True)
class CallState:
    """Where the kubelet's calls stand; each step makes the next value.

    `pending` is None while no container is being admitted; `answered_at` is by the loop's clock, in seconds.
    """

    pending: Pending | None = None
    answered_at: float = -math.inf

    def decide(self, pending: Pending) -> "CallState":
        """The first call of a container places its whole request."""
        return replace(self, pending=pending)

    def tell(self, resource: str, ids: frozenset[str]) -> "CallState":
        """GetPreferredAllocation names units, or the kubelet hands on those of an init container."""
        known = self.decided
        told = {**known.preferred, resource: ids}
        return replace(self, pending=replace(known, preferred=told))

    def grant(self, resource: str, slice_id: str) -> "CallState":
        """Allocate has made the grant durable; another resource of the container may follow."""
        known = self.decided
        granted = known.granted | {resource}
        return replace(self, pending=replace(known, granted=granted, slice_id=slice_id))

    def answered(self, now: float) -> "CallState":
        return replace(self, answered_at=now)

    def refuse(self) -> "CallState":
        """The kubelet makes no further call for the container."""
        return replace(self, pending=None)

    @property
    def decided(self) -> Pending:
        """The container that is being admitted, where a call has found that there is one."""
        assert self.pending is not None  # noqa: S101 - each caller has decided first
        return self.pending

    def open_for(self, resource: str, now: float) -> Pending | None:
        """The decision that a call for `resource` may still belong to."""
        known = self.pending
        if known is None or not known.preferred or resource in known.preferred:
            return None
        return known if self.admitting(now) else None

    def awaits(self, call: Call) -> bool:
        """Whether exactly this Allocate is expected; each comes only once."""
        known = self.pending
        if known is None or call.resource in known.granted:
            return False
        return known.preferred.get(call.resource) == call.must_include

    @property
    def awaits_allocate(self) -> bool:
        """Whether the kubelet was told units for which it has not asked yet."""
        return self.pending is not None and bool(
            self.pending.preferred.keys() - self.pending.granted
        )

    def admitting(self, now: float) -> PodRef | None:
        """The pod of which a container was decided a moment ago."""
        is_late = now - self.answered_at > ADMISSION_SECONDS
        return None if is_late or self.pending is None else self.pending.caller.pod


@dataclass(frozen=True, slots=True)
class Offer:
    """What a call may choose from.

    Attributes:
        live: Grants of fractions by units, of pods that the kubelet still has.
        all_live: Such grants of whole devices and of claims too, which take room of the same devices.
        is_given: Whether the kubelet has chosen already: it reuses these units.
        held: Unit ids that the asking container holds already, by the kubelet's List.
    """

    call: Call
    available: frozenset[str]
    live: Ledger
    all_live: Ledger
    is_given: bool = False
    held: frozenset[str] = frozenset()


def check_in_service(pending: Pending, state: NodeState) -> None:
    """Raise DoesNotFitError if a card became unhealthy between the kubelet's two calls."""
    for card in pending.chosen.cards:
        reason = state.unhealthy.get(card.uuid)
        if reason:
            raise DoesNotFitError(
                f"card {card.index} ({card.uuid}) became unhealthy ({reason}) after it was "
                f"chosen; create the pod again",
                reason="NoHealthyCard",
            )


def check_not_resized(call: Call, ledger: Ledger) -> None:
    """Raise DoesNotFitError for units that a slice has grown into: the kubelet had not heard of it yet."""
    for grant in ledger.grants.values():
        if grant.resized and call.must_include & grant.extra_ids:
            raise DoesNotFitError(
                f"pod {grant.pod}, {grant.holder}, was resized and has units that the kubelet gives now; "
                f"create the pod again",
                reason="UnitsResized",
            )


def check_device_plugin_serves(state: NodeState, pending: Pending | None) -> None:
    """Raise RequestError where cards go by claims; a container with the first resource gets the second one."""
    if state.allocation_api is AllocationApi.DRA and not (pending and pending.slice_id):
        raise RequestError(
            "this node gives its cards through claims (allocation API dra); use a namespace with the "
            "label gpu-device-plugin/allocation-api=dra, or another node",
            reason="OtherAllocationApi",
        )
