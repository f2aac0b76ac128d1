"""A decision for one container, and what it was made from.

The first call for a container decides for its whole request; the second one follows it.
"""

from dataclasses import dataclass, field

from gpu_device_plugin.domain.caller import Asker, Call
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.shares import Demand
from gpu_device_plugin.errors import DoesNotFitError


@dataclass(slots=True)
class Pending:
    """A container that is being admitted.

    Attributes:
        asker: Who asks.
        demand: What it needs in all.
        cards: Where it goes.
        why: Why there, for people.
        asked: What it needs, for people.
        rooms: What each card had free when this was decided, for people: a line each.
        preferred: The answers to GetPreferredAllocation, by resource.
        granted: Resources whose Allocate has come.
        slice_id: Its grant, once there is one.
    """

    asker: Asker
    demand: Demand
    cards: tuple[Card, ...]
    why: str
    asked: str = ""
    rooms: tuple[str, ...] = ()
    preferred: dict[str, frozenset[str]] = field(default_factory=dict)
    granted: set[str] = field(default_factory=set)
    slice_id: str = ""

    def awaits(self, call: Call) -> bool:
        """Whether exactly this Allocate is expected; each comes only once."""
        is_next = call.resource not in self.granted
        return is_next and self.preferred.get(call.resource) == call.must_include

    def is_for(self, asker: Asker) -> bool:
        """Whether this is the same container."""
        mine = self.asker.container.name if self.asker.container else None
        theirs = asker.container.name if asker.container else None
        return mine == theirs and self.asker.pod == asker.pod


@dataclass(frozen=True, slots=True)
class Offer:
    """What a call may choose from.

    Attributes:
        call: Resource, size and the units it must include.
        available: Unit ids that the kubelet has free.
        live: Grants of pods that the kubelet still has.
        is_given: Whether the kubelet has chosen already: it reuses these units.
    """

    call: Call
    available: frozenset[str]
    live: Ledger
    is_given: bool = False


def check_in_service(pending: Pending, state: NodeState) -> None:
    """A card may fail between the kubelet's two calls; nothing is granted on it then.

    Raises:
        DoesNotFitError: A card that was decided on is out of service.
    """
    for card in pending.cards:
        reason = state.unhealthy.get(card.uuid)
        if reason:
            raise DoesNotFitError(
                f"card {card.index} ({card.uuid}) went out of service ({reason}) after it was "
                f"chosen; create the pod again",
                reason="NoHealthyCard",
            )
