"""The schemes of a node: which of them a call, a grant, a card or a part of a pod belongs to."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from gpu_device_plugin.domain.cards.card import CardNumber
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.units import Resource, foreign_ids
from gpu_device_plugin.domain.grants.grant import Grant
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.grants.scheme_protocol import GrantedIn, Layout, Scheme
from gpu_device_plugin.domain.node.modes import MODE_LABEL, is_whole
from gpu_device_plugin.domain.node.pods import HeldUnits, ListedPod, PodKey, PodRequest
from gpu_device_plugin.domain.node.state import NodeState, Pool
from gpu_device_plugin.domain.nvidia.configuration import Configuration
from gpu_device_plugin.domain.nvidia.nvidia_scheme import NvidiaScheme
from gpu_device_plugin.errors import RequestError, StateError

S = TypeVar("S", bound=Scheme)
T = TypeVar("T")


class SchemeView(NamedTuple, Generic[S]):
    """A scheme, and the node as it sees it."""

    scheme: S
    view: NodeState


@dataclass(frozen=True, slots=True)
class Scope:
    """Values without what is of another scheme; `resources` is None where there is no other."""

    resources: frozenset[str] | None = None

    def ledger(self, ledger: Ledger) -> Ledger:
        own = self.resources
        if own is None:
            return ledger
        return ledger.release([k for k, g in ledger.grants.items() if own.isdisjoint(g.units)])

    def parts(self, ledger: Ledger) -> tuple[Ledger, Ledger]:
        """The scheme's own grants and the others, without units (of claims) too: they take room."""
        own = self.ledger(ledger)
        return own, Ledger() if own is ledger else ledger.release(own.grants)

    def specs(self, specs: Mapping[PodKey, PodRequest]) -> Mapping[PodKey, PodRequest]:
        if self.resources is None:
            return specs
        return {key: self.spec(spec) for key, spec in specs.items()}

    def spec(self, spec: PodRequest) -> PodRequest:
        if all(self._is_own(each.amounts) for each in spec.containers):
            return spec
        containers = (replace(each, amounts=self._only(each.amounts)) for each in spec.containers)
        return replace(spec, containers=tuple(containers))

    def pods(self, listed: Sequence[ListedPod]) -> Sequence[ListedPod]:
        if self.resources is None:
            return listed
        return [
            pod
            if self.resources.issuperset(pod.resources)
            else replace(pod, held={name: self._only(units) for name, units in pod.held.items()})
            for pod in listed
        ]

    def entries(self, entries: Sequence[CheckpointEntry]) -> Sequence[CheckpointEntry]:
        own = self.resources
        return entries if own is None else [each for each in entries if each.resource in own]

    def _is_own(self, by_resource: Mapping[str, object]) -> bool:
        return self.resources is None or self.resources.issuperset(by_resource)

    def _only(self, by_resource: Mapping[str, T]) -> dict[str, T]:
        own = self.resources or frozenset()
        return {name: value for name, value in by_resource.items() if name in own}


EVERYTHING = Scope()
"""The scope of a node with one scheme."""


# Reasons for which nothing is registered at all: another plugin owns the cards, the kubelet could
# not receive the list, or it is not known what to offer.
WITHDRAWING = frozenset({"OtherPlugin", "DeviceListTooLong", "ConfigurationMissing"})


class _Names(Collection[str]):
    """The resources of the schemes as they are now: a configuration may bring more."""

    def __init__(self, schemes: Sequence[Scheme]) -> None:
        self._schemes = schemes

    def __contains__(self, name: object) -> bool:
        return any(name in scheme.resources for scheme in self._schemes)

    def __iter__(self) -> Iterator[str]:
        return iter(frozenset().union(*(scheme.resources for scheme in self._schemes)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Schemes:
    """The two kinds of resources of a node: fractions, which we choose, and NVIDIA's whole devices, which the kubelet chooses.

    Attributes:
        fractions: Takes what belongs to none.
        nvidia: None where nobody gives a configuration, as for counting fractions alone.
        all: Both.
        resources: Every resource that this node may ever offer, and no other plugin's; it grows.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration] | None = None,
        held: Callable[[], Iterable[Grant]] = lambda: (),
    ) -> None:
        """NVIDIA's configuration and what pods hold are asked at each call."""
        self.fractions = AliyunScheme()
        self.nvidia = NvidiaScheme(configuration, held) if configuration else None
        self.recorders: tuple[NvidiaScheme, ...] = (self.nvidia,) if self.nvidia else ()
        self.all: tuple[Scheme, ...] = (self.fractions, *self.recorders)
        self._views: dict[Scheme, tuple[NodeState, NodeState]] = {}
        self.resources: Collection[str] = _Names(self.all)

    def of(self, resource: str) -> Scheme:
        return next((each for each in self.all if resource in each.resources), self.fractions)

    def of_grant(self, grant: Grant) -> Scheme:
        return self.of(next(iter(grant.units), ""))

    def decider(self, grant: Grant) -> AliyunScheme | None:
        return self.fractions if self.of_grant(grant) is self.fractions else None

    def recorder(self, resource: str) -> NvidiaScheme | None:
        return self.nvidia if self.of(resource) is self.nvidia else None

    def scope(self, scheme: Scheme) -> Scope:
        return Scope(None if len(self.all) == 1 else frozenset(scheme.resources))

    def view(self, scheme: Scheme, state: NodeState) -> NodeState:
        """The node as `scheme` sees it: with its own cards only."""
        if len(self.all) == 1:
            return state
        of, view = self._views.get(scheme, (None, state))
        if of is state:  # each of the kubelet's calls asks several times
            return view
        is_nvidia = scheme is self.nvidia
        whole = is_whole(state.mode)
        mine = tuple(c for c in state.cards if (whole or c.hardware.is_mig) is is_nvidia)
        view = replace(state, cards=mine, other_cards=len(state.cards) - len(mine))
        self._views[scheme] = state, view
        return view

    def views(self, schemes: Iterable[S], state: NodeState) -> list[SchemeView[S]]:
        """Each of these schemes (`all` or `recorders`) with its view of the node."""
        return [SchemeView(scheme, self.view(scheme, state)) for scheme in schemes]

    def find_serving(self, resource: str, state: NodeState) -> SchemeView[Scheme]:
        """The scheme of `resource` and its view of the node; RequestError if it is not served now."""
        scheme = self.of(resource)
        view = self.view(scheme, state)
        if not scheme.serves(resource, view):
            raise RequestError(
                f"this mode does not serve {resource}; use another node (nodeSelector {MODE_LABEL})",
                reason="NotServed",
            )
        return SchemeView(scheme, view)

    def find_reserving(self, state: NodeState) -> SchemeView[AliyunScheme]:
        """The fractions and their view of the node; RequestError where none are served now."""
        view = self.view(self.fractions, state)
        if any(self.fractions.serves(resource, view) for resource in self.fractions.resources):
            return SchemeView(self.fractions, view)
        raise RequestError(
            f"node {state.node} (mode {state.mode}) divides no cards; use another node",
            reason="NotServed",
        )

    def pools(self, state: NodeState) -> tuple[Pool, ...]:
        """The pools that are registered now; none before mode and cards are known.

        On a node that is marked for uninstalling they are empty: the kubelet then counts 0 at
        once. If the lists ended instead, it would keep the capacity for five minutes.
        """
        if state.mode is None or not state.cards or not WITHDRAWING.isdisjoint(state.faults):
            return ()
        found = (pool for each, view in self.views(self.all, state) for pool in each.pools(view))
        return tuple(Pool(pool.resource) if state.mark else pool for pool in found)

    def check_size(self, state: NodeState) -> None:
        """Raise ConfigError if the kubelet could not receive a device list of this node."""
        self.fractions.check_size(self.view(self.fractions, state))

    def offers(self, state: NodeState) -> bool:
        views = self.views(self.all, state)
        return any(each.serves(name, view) for each, view in views for name in each.resources)

    def layout(self, state: NodeState) -> Layout:
        found = [each.layout(view) for each, view in self.views(self.all, state)]
        return Layout(
            next((each.problem for each in found if each.problem), ""),
            tuple(text for each in found for text in each.left_out),
            tuple(text for each in found for text in each.waiting),
            tuple(name for each in found for name in each.unshared),
        )

    def card_numbers(self, ids: Iterable[str]) -> frozenset[CardNumber]:
        """The numbers of the cards that these units lie on, where their ids tell."""
        return self.fractions.card_numbers(ids)

    def container_of(self, grant: Grant, spec: PodRequest | None) -> str:
        """Name of the container that holds a grant; of a claim the one that asked, else the claim."""
        if not grant.holder.claim:
            return grant.container
        scheme = self.decider(grant)
        asked = scheme.claiming_container(grant, spec) if scheme and spec else ""
        return asked or grant.holder.claim_name

    def own_record(self, grant: Grant) -> Mapping[str, object]:
        """What only its scheme knows of a grant, as keys of the grant on disk."""
        scheme = self.decider(grant)
        return scheme.own_record(grant) if scheme else {}

    def restore(self, grant: Grant, record: Mapping[str, object]) -> Grant:
        """A grant that was read from disk, with what only its scheme knows of it; StateError names an unknown key."""
        for name, ids in grant.units.items():
            if not any(each.recalls(name) for each in self.all):
                raise StateError(f"{list(ids)} are no units of {name} - at `$.units`")
        scheme = self.decider(grant)
        return scheme.restore(grant, record) if scheme else grant

    def recall(self, names: Iterable[str]) -> None:
        """Pods may hold units of these, which were registered in an earlier run."""
        for scheme in self.all:
            for name in names:
                scheme.recalls(name)

    def granted_in(self, ledger: Ledger) -> GrantedIn | None:
        """Mode and memory unit in which grants were given last, where any tells."""
        last = reversed(tuple(ledger.grants.values()))
        return next((each.granted_in(g) for g in last if (each := self.decider(g))), None)

    def adopt(
        self, held: Sequence[HeldUnits], specs: Sequence[PodRequest], state: NodeState
    ) -> list[Grant]:
        return [
            scheme.with_size(grant, view)
            for scheme, view in self.views(self.all, state)
            for own in ([units for units in held if units.resource in scheme.resources],)
            for grant in scheme.adopt(own, specs, view)
        ]


_FRACTIONS = frozenset(map(str, Resource))
OUR_RESOURCES = Schemes().resources
"""Every name under which a scheme of this release may offer units; no other plugin's."""


def merge(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """What several schemes say, in one mapping."""
    return {key: value for part in parts for key, value in part.items()}


def held_of_others(listed: Iterable[ListedPod]) -> frozenset[str]:
    """Our names of which pods hold units of another plugin, which does not have to be there any more."""
    held = (each for pod in listed for of_one in pod.held.values() for each in of_one.items())
    return frozenset(name for name, ids in held if name in _FRACTIONS and foreign_ids(name, ids))
