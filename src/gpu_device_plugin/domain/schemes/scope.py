"""What of pods and grants is of one scheme: a container may ask for resources of two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from gpu_device_plugin.domain.ledger import Ledger
from gpu_device_plugin.domain.pods import ListedPod, PodRequest

T = TypeVar("T")
Place: TypeAlias = tuple[str, str, str]
"""Uid of a pod, name of a container, resource."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Values without what is of another scheme.

    Attributes:
        resources: The scheme's resources; None where there is no other scheme.
    """

    resources: frozenset[str] | None = None

    def ledger(self, ledger: Ledger) -> Ledger:
        """The scheme's own grants."""
        own = self.resources
        if own is None:
            return ledger
        return Ledger({k: g for k, g in ledger.grants.items() if not own.isdisjoint(g.units)})

    def others(self, ledger: Ledger) -> Ledger:
        """The other grants, those without units (of claims) included: they too take room."""
        return ledger.release(self.ledger(ledger).grants)

    def specs(
        self, specs: Mapping[tuple[str, str], PodRequest]
    ) -> Mapping[tuple[str, str], PodRequest]:
        """Pods with what they ask of the scheme."""
        if self.resources is None:
            return specs
        return {key: self.spec(spec) for key, spec in specs.items()}

    def spec(self, spec: PodRequest) -> PodRequest:
        """A pod with what it asks of the scheme."""
        if self.resources is None:
            return spec
        containers = (replace(each, amounts=self._only(each.amounts)) for each in spec.containers)
        return replace(spec, containers=tuple(containers))

    def listed(self, listed: Sequence[ListedPod]) -> Sequence[ListedPod]:
        """Pods with what they hold of the scheme."""
        if self.resources is None:
            return listed
        return [
            replace(pod, held={name: self._only(units) for name, units in pod.held.items()})
            for pod in listed
        ]

    def places(self, held: Mapping[Place, T]) -> Mapping[Place, T]:
        """What containers hold of the scheme."""
        own = self.resources
        if own is None:
            return held
        return {place: ids for place, ids in held.items() if place[2] in own}

    def _only(self, by_resource: Mapping[str, T]) -> dict[str, T]:
        own = self.resources or frozenset()
        return {name: value for name, value in by_resource.items() if name in own}


EVERYTHING = Scope()
"""The scope of a node with one scheme."""
