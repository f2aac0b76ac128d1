"""What a way of sharing has to say; the parts of the agent know no resource name beside it."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_device_plugin.domain.cards.memory_unit import MemoryUnit
from gpu_device_plugin.domain.grants.grant import Grant
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
    container gets (`AliyunScheme`), or records what the kubelet has chosen
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
