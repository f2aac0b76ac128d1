"""A decision for one holder, and the calls of the kubelet that lead to one.

The first call for a container decides for its whole request; the second one follows it.
"""

from dataclasses import dataclass, field

from gpu_device_plugin.domain.caller import Asker, Call
from gpu_device_plugin.domain.devices import Card
from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.node_state import NodeState
from gpu_device_plugin.domain.pods import PodRequest
from gpu_device_plugin.domain.shares import Demand, Holder
from gpu_device_plugin.errors import DoesNotFitError


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a holder is to get, decided and not granted yet.

    Attributes:
        demand: What it needs in all.
        why: Why there, for people.
        asked: What it needs, for people.
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


@dataclass(slots=True)
class Pending:
    """A container that is being admitted by the kubelet's calls, one a resource.

    `preferred` are the answers to GetPreferredAllocation, `granted` the resources whose Allocate has come.
    """

    asker: Asker
    chosen: Reservation
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
        available: Unit ids that the kubelet has free.
        live: Grants of the call's scheme, of pods that the kubelet still has.
        others: Such grants of other schemes, and of claims: they have no units of this call's
            resource, and take room of the same devices.
        is_given: Whether the kubelet has chosen already: it reuses these units.
        held: Unit ids that the asking container holds already, by the kubelet's List.
    """

    call: Call
    available: frozenset[str]
    live: Ledger
    others: Ledger = field(default_factory=Ledger)
    is_given: bool = False
    held: frozenset[str] = frozenset()

    @property
    def all_live(self) -> Ledger:
        """Every grant that takes room."""
        if not self.others.grants:
            return self.live
        return Ledger({**self.live.grants, **self.others.grants})


def check_in_service(pending: Pending, state: NodeState) -> None:
    """A card may fail between the kubelet's two calls; nothing is granted on it then.

    Raises:
        DoesNotFitError: A card that was decided on is out of service.
    """
    for card in pending.chosen.cards:
        reason = state.unhealthy.get(card.uuid)
        if reason:
            raise DoesNotFitError(
                f"card {card.index} ({card.uuid}) went out of service ({reason}) after it was "
                f"chosen; create the pod again",
                reason="NoHealthyCard",
            )
