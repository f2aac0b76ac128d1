"""What a way of sharing has to say; the parts of the agent know no resource name beside it."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_device_plugin.domain.cards.card import Card, CardNumber
from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.call_state import Offer, Pending, Reservation
from gpu_device_plugin.domain.grants.caller import Call, Caller
from gpu_device_plugin.domain.grants.claims import AllocatedDevice, Capacity
from gpu_device_plugin.domain.grants.container_edits import ContainerEdits, DeviceAccess, Paths
from gpu_device_plugin.domain.grants.grant import Demand, Grant, Holder
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import NodeMode
from gpu_device_plugin.domain.node.pods import HeldUnits, PodRequest
from gpu_device_plugin.domain.node.state import NodeState, Pool, UnitCount


class GrantedIn(NamedTuple):
    """Mode and memory unit of the node when a grant was given."""

    mode: NodeMode
    unit: MemoryUnit


@dataclass(frozen=True, slots=True)
class NewGrant:
    """What a scheme does not decide of a grant."""

    slice_id: str
    created_seconds: float
    is_isolated: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """Why a node does not fit what a scheme is to offer; what waits, card by card; which names it is to share and does not."""

    problem: str = ""
    left_out: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unshared: tuple[str, ...] = ()


class Scheme(ABC):
    """One way of sharing.

    The `state` that it gets holds its own cards only. A scheme either decides which units a
    container gets (`WeChooseDevices`), or records what the kubelet has chosen
    (`KubeletChoosesDevices`). Both end in grants of one ledger.
    """

    @property
    @abstractmethod
    def resources(self) -> Collection[str]:
        """Every resource that it may ever offer."""

    def recalls(self, resource: str) -> bool:
        """Whether a grant of an earlier run may hold units of it."""
        return resource in self.resources

    @abstractmethod
    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        """What it offers now, unhealthy units included; nothing while it may not serve."""

    @abstractmethod
    def serves(self, resource: str, state: NodeState) -> bool:
        """Whether a container may ask for `resource` on this node now."""

    @abstractmethod
    def asked_text(self, resource: str, amount: int, state: NodeState) -> str:
        """An amount of a resource with its unit, for people."""

    @abstractmethod
    def annotations(
        self, grants: Sequence[Grant], state: NodeState, assume_time_ns: int
    ) -> Mapping[str, str]:
        """What a pod's annotations say of its grants; nothing where they have to wait."""

    @abstractmethod
    def held_text(self, grant: Grant) -> str:
        """What its holder has, for people."""

    @abstractmethod
    def with_size(self, grant: Grant, state: NodeState) -> Grant:
        """The grant with its memory on each device, or without while a device is away."""

    @abstractmethod
    def check_spec(self, grant: Grant, spec: PodRequest, state: NodeState) -> Grant:
        """The grant, held to the rules that need its pod spec; RequestError if it breaks one."""

    @abstractmethod
    def adopt(
        self, held: Iterable[HeldUnits], specs: Iterable[PodRequest], state: NodeState
    ) -> tuple[Grant, ...]:
        """Grants for containers that hold units without one."""

    def layout(self, state: NodeState) -> Layout:  # noqa: ARG002 - of most schemes nothing
        """What is in the way of its offers."""
        return Layout()

    def counts(self, state: NodeState, ledger: Ledger) -> Mapping[str, Sequence[UnitCount]]:
        """UUID of a card -> what is free and held of each resource there."""
        taken, found = ledger.ids(), dict[str, list[UnitCount]]()
        for pool in self.pools(state):
            by_card: dict[str, tuple[int, int]] = {}
            for group in pool.groups:
                held = sum(text in taken for text in group.ids)
                before = by_card.get(group.card, (0, 0))
                by_card[group.card] = (before[0] + len(group.ids) - held, before[1] + held)
            for card, (free, held) in by_card.items():
                found.setdefault(card, []).append(UnitCount(pool.resource, free, held))
        return found


class WeChooseDevices(Scheme):
    """A scheme that chooses the devices of a container itself, and tells the kubelet the units."""

    @abstractmethod
    def check_size(self, state: NodeState) -> None:
        """Raise ConfigError if the kubelet cannot receive the lists of the pools."""

    @abstractmethod
    def card_numbers(self, ids: Iterable[str]) -> frozenset[CardNumber]:
        """The numbers of the cards that units of these ids lie on; foreign ids count for none."""

    @abstractmethod
    def claiming_container(self, grant: Grant, spec: PodRequest) -> str:
        """Name of the container that a claim's grant was asked for; empty where that is not known."""

    @abstractmethod
    def own_record(self, grant: Grant) -> Mapping[str, object]:
        """What only this scheme knows of a grant, as keys of the grant on disk."""

    @abstractmethod
    def restore(self, grant: Grant, record: Mapping[str, object]) -> Grant:
        """A grant that was read from disk, with what only this scheme knows of it from its `record`.

        Raises StateError for what this release does not know; the text names the key.
        """

    @abstractmethod
    def granted_in(self, grant: Grant) -> GrantedIn:
        """Mode and memory unit of the node when it was given."""

    @abstractmethod
    def decide(self, caller: Caller, offer: Offer, state: NodeState) -> Pending:
        """The devices for a container's whole request.

        Raises RequestError for what is never valid on this node, DoesNotFitError where no device
        has room.
        """

    @abstractmethod
    def choose(self, pending: Pending, offer: Offer, state: NodeState) -> tuple[str, ...]:
        """Exactly as many units as asked, of the devices decided on.

        Raises RequestError for what this node never gives, DoesNotFitError where the kubelet has
        too few free.
        """

    @abstractmethod
    def check_given(self, caller: Caller, offer: Offer, state: NodeState) -> None:
        """Raise DoesNotFitError unless the units that the kubelet gives without asking us make a whole request."""

    @abstractmethod
    def check_follows(self, pending: Pending, ids: Collection[str]) -> None:
        """Raise DoesNotFitError unless the units lie where the decision says."""

    @abstractmethod
    def reserve(
        self,
        holder: Holder,
        demand: Demand,
        live: Ledger,
        state: NodeState,
        devices: Collection[str] = (),
    ) -> Reservation:
        """Devices for a holder, by amounts: for an allocation API that counts no units of the kubelet's.

        `devices` were chosen by a scheduler; empty for a choice of the scheme's. DoesNotFitError:
        no room.
        """

    @abstractmethod
    def capacity(self, card: Card, state: NodeState) -> Capacity | None:
        """What claims may divide of a card; None where they may not."""

    @abstractmethod
    def claim_demand(self, devices: Sequence[AllocatedDevice], state: NodeState) -> Demand:
        """What a claim needs, from what is allocated to it on each device, at least one; RequestError if not of this node."""

    @abstractmethod
    def grant(self, chosen: Reservation, new: NewGrant, state: NodeState) -> Grant:
        """The grant of a decision, without units."""

    @abstractmethod
    def give(self, grant: Grant, call: Call, state: NodeState, *, is_known: bool) -> Grant:
        """The grant, now holding the call's units; `is_known` says whether its pod spec is."""

    @abstractmethod
    def check_shape(self, grant: Grant, state: NodeState) -> None:
        """Raise RequestError if a grant whose container starts breaks a rule that needs no pod spec."""

    @abstractmethod
    def answers(self, resource: str) -> bool:
        """Whether the answer to an Allocate of `resource` carries the container's edits."""

    @abstractmethod
    def edits(
        self,
        grant: Grant,
        cards: Sequence[Card],
        state: NodeState,
        access: DeviceAccess,
        paths: Paths,
    ) -> ContainerEdits:
        """What the container of `grant` receives."""
