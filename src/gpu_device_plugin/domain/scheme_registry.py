"""The two kinds of resources of a node: of which of them a call, a grant, a card or a part of a pod is."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpu_device_plugin.domain.cards.card import CardNumber
from gpu_device_plugin.domain.fractions.aliyun_scheme import AliyunScheme
from gpu_device_plugin.domain.fractions.fraction import to_record
from gpu_device_plugin.domain.fractions.room import check_message
from gpu_device_plugin.domain.fractions.units import Resource, cards_of, foreign_ids
from gpu_device_plugin.domain.grants.grant import Grant, GrantedIn
from gpu_device_plugin.domain.grants.kubelet_snapshot import CheckpointEntry
from gpu_device_plugin.domain.grants.ledger import Ledger
from gpu_device_plugin.domain.node.modes import MODE_LABEL, is_whole
from gpu_device_plugin.domain.node.pods import HeldUnits, ListedPod, PodKey, PodRequest
from gpu_device_plugin.domain.node.state import Layout, NodeState, Pool, UnitCount
from gpu_device_plugin.domain.nvidia.configuration import Configuration
from gpu_device_plugin.domain.nvidia.nvidia_scheme import NvidiaScheme
from gpu_device_plugin.errors import RequestError, StateError

T = TypeVar("T")
Scheme = AliyunScheme | NvidiaScheme


@dataclass(frozen=True, slots=True)
class Scope:
    """Values without what is not of these resources."""

    resources: Collection[str]

    def ledger(self, ledger: Ledger) -> Ledger:
        """The grants that hold units of these; those of claims hold none."""
        own = frozenset(self.resources)
        return ledger.release([k for k, g in ledger.grants.items() if own.isdisjoint(g.units)])

    def specs(self, specs: Mapping[PodKey, PodRequest]) -> Mapping[PodKey, PodRequest]:
        return {key: self._spec(spec) for key, spec in specs.items()}

    def _spec(self, spec: PodRequest) -> PodRequest:
        if all(self._is_own(each.amounts) for each in spec.containers):
            return spec
        containers = (replace(each, amounts=self._only(each.amounts)) for each in spec.containers)
        return replace(spec, containers=tuple(containers))

    def pods(self, listed: Sequence[ListedPod]) -> Sequence[ListedPod]:
        return [
            pod
            if self._is_own(pod.resources)
            else replace(pod, held={name: self._only(units) for name, units in pod.held.items()})
            for pod in listed
        ]

    def entries(self, entries: Sequence[CheckpointEntry]) -> Sequence[CheckpointEntry]:
        return [each for each in entries if each.resource in self.resources]

    def _is_own(self, names: Iterable[str]) -> bool:
        return all(name in self.resources for name in names)

    def _only(self, by_resource: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in by_resource.items() if name in self.resources}


OF_FRACTIONS = Scope(AliyunScheme.resources)


# Reasons for which nothing is registered at all: another plugin owns the cards, the kubelet could
# not receive the list, or it is not known what to offer.
WITHDRAWING = frozenset({"OtherPlugin", "DeviceListTooLong", "ConfigurationMissing"})


class _Names(Collection[str]):
    """The resources of both kinds as they are now: a configuration may bring more."""

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
        resources: Every resource that this node may ever offer, and no other plugin's; it grows.
    """

    def __init__(
        self,
        configuration: Callable[[], Configuration] = Configuration,
        held: Callable[[], Iterable[Grant]] = lambda: (),
    ) -> None:
        """NVIDIA's configuration and what pods hold are asked at each call."""
        self.fractions, self.nvidia = AliyunScheme(), NvidiaScheme(configuration, held)
        self._all: tuple[Scheme, ...] = (self.fractions, self.nvidia)
        self._views: dict[Scheme, tuple[NodeState, NodeState]] = {}
        self.resources: Collection[str] = _Names(self._all)

    def of(self, resource: str) -> Scheme:
        return next((each for each in self._all if resource in each.resources), self.fractions)

    def of_grant(self, grant: Grant) -> Scheme:
        return self.of(next(iter(grant.units), ""))

    def divides(self, resource: str) -> bool:
        """Whether units of it are fractions."""
        return self.of(resource) is self.fractions

    def is_fraction(self, grant: Grant) -> bool:
        return self.of_grant(grant) is self.fractions

    def view(self, scheme: Scheme, state: NodeState) -> NodeState:
        """The node as `scheme` sees it: with its own cards only."""
        of, view = self._views.get(scheme, (None, state))
        if of is state:  # each of the kubelet's calls asks several times
            return view
        is_nvidia = scheme is self.nvidia
        whole = is_whole(state.mode)
        mine = tuple(c for c in state.cards if (whole or c.hardware.is_mig) is is_nvidia)
        view = replace(state, cards=mine, other_cards=len(state.cards) - len(mine))
        self._views[scheme] = state, view
        return view

    def views(self, state: NodeState) -> list[tuple[Scheme, NodeState]]:
        """Each kind, and the node as it sees it."""
        return [(scheme, self.view(scheme, state)) for scheme in self._all]

    def serving_view(self, resource: str, state: NodeState) -> NodeState:
        """The node as the kind of `resource` sees it; RequestError if it is not served now."""
        scheme = self.of(resource)
        view = self.view(scheme, state)
        if not scheme.serves(resource, view):
            raise RequestError(
                f"this mode does not serve {resource}; use another node (nodeSelector {MODE_LABEL})",
                reason="NotServed",
            )
        return view

    def dividing_view(self, state: NodeState) -> NodeState:
        """The node as fractions see it; RequestError where none are served now."""
        view = self.view(self.fractions, state)
        if any(self.fractions.serves(resource, view) for resource in self.fractions.resources):
            return view
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
        found = (pool for each, view in self.views(state) for pool in each.pools(view))
        return tuple(Pool(pool.resource) if state.mark else pool for pool in found)

    def check_size(self, state: NodeState) -> None:
        """Raise ConfigError if the kubelet could not receive a device list of this node."""
        view = self.view(self.fractions, state)
        if view.mode is not None:
            check_message(view.cards, view.unit, view.mode)

    def offers(self, state: NodeState) -> bool:
        views = self.views(state)
        return any(each.serves(name, view) for each, view in views for name in each.resources)

    def layout(self, state: NodeState) -> Layout:
        found = [each.layout(view) for each, view in self.views(state)]
        return Layout(
            next((each.problem for each in found if each.problem), ""),
            tuple(text for each in found for text in each.left_out),
            tuple(text for each in found for text in each.waiting),
            tuple(name for each in found for name in each.unshared),
        )

    def counts(self, state: NodeState, ledger: Ledger) -> Mapping[str, Sequence[UnitCount]]:
        """UUID of a card -> what is free and held of each resource there."""
        taken, found = ledger.ids() | ledger.extra_ids(), dict[str, list[UnitCount]]()
        for pool in (pool for scheme, view in self.views(state) for pool in scheme.pools(view)):
            by_card: dict[str, tuple[int, int]] = {}
            for group in pool.groups:
                held = sum(text in taken for text in group.ids)
                before = by_card.get(group.card, (0, 0))
                by_card[group.card] = (before[0] + len(group.ids) - held, before[1] + held)
            for card, (free, held) in by_card.items():
                found.setdefault(card, []).append(UnitCount(pool.resource, free, held))
        return self.fractions.with_claims(found, ledger)

    def annotations(
        self, grants: Sequence[Grant], state: NodeState, assume_time_ns: int
    ) -> Mapping[str, str]:
        """What a pod's annotations say of its grants; nothing where they have to wait."""
        found: dict[str, str] = {}
        for scheme, view in self.views(state):
            own = [grant for grant in grants if self.of_grant(grant) is scheme]
            found |= scheme.annotations(own, view, assume_time_ns)
        return found

    def card_numbers(self, ids: Iterable[str]) -> frozenset[CardNumber]:
        """The numbers of the cards that these units lie on, where their ids tell."""
        return cards_of(ids)

    def container_of(self, grant: Grant, spec: PodRequest | None) -> str:
        """Name of the container that holds a grant; of a claim the one that asked, else the claim."""
        if not grant.holder.claim:
            return grant.container
        asked = self.fractions.claiming_container(grant, spec) if spec else ""
        return asked or grant.holder.claim_name

    def own_record(self, grant: Grant) -> Mapping[str, object]:
        """What only its scheme knows of a grant, as keys of the grant on disk."""
        return to_record(grant) if self.is_fraction(grant) else {}

    def restore(self, grant: Grant, record: Mapping[str, object]) -> Grant:
        """A grant that was read from disk, with what only its scheme knows of it; StateError names an unknown key."""
        for name, ids in grant.units.items():
            if not self._recalls(name):
                raise StateError(f"{list(ids)} are no units of {name} - at `$.units`")
        return self.fractions.restore(grant, record) if self.is_fraction(grant) else grant

    def recall(self, names: Iterable[str]) -> None:
        """Pods may hold units of these, which were registered in an earlier run."""
        for name in names:
            self._recalls(name)

    def _recalls(self, name: str) -> bool:
        return name in self.fractions.resources or self.nvidia.recalls(name)

    def granted_in(self, ledger: Ledger) -> GrantedIn | None:
        """Mode and memory unit in which grants were given last, where any tells."""
        last = reversed(tuple(ledger.grants.values()))
        return next((self.fractions.granted_in(g) for g in last if self.is_fraction(g)), None)

    def adopt(
        self, held: Sequence[HeldUnits], specs: Sequence[PodRequest], state: NodeState
    ) -> list[Grant]:
        return [
            scheme.with_size(grant, view)
            for scheme, view in self.views(state)
            for own in ([units for units in held if units.resource in scheme.resources],)
            for grant in scheme.adopt(own, specs, view)
        ]


OUR_RESOURCES: Collection[str] = frozenset(map(str, Resource))
"""Every name that no other plugin has, whatever the configuration."""


def held_of_others(listed: Iterable[ListedPod]) -> frozenset[str]:
    """Our names of which pods hold units of another plugin, which does not have to be there any more."""
    held = (each for pod in listed for of_one in pod.held.values() for each in of_one.items())
    return frozenset(name for name, ids in held if name in OUR_RESOURCES and foreign_ids(name, ids))
