"""The ledger: all grants of a node; when one is over, `grant_lifetime` says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.pods import HeldUnits, PodRef


@dataclass(frozen=True, slots=True)
class Ledger:
    """All grants of a node. No unit is held by two pods; a pod's containers may reuse units.

    The kubelet can break that rule (#137534). So `hold` does not check it, and the caller that
    is about to grant uses `rivals` to do so.
    """

    grants: Mapping[str, Grant] = field(default_factory=dict)

    def hold(self, grant: Grant) -> "Ledger":
        """The ledger with `grant` added, or replacing the one with the same slice id."""
        return Ledger({**self.grants, grant.slice_id: grant})

    def release(self, slice_ids: Iterable[str]) -> "Ledger":
        """The ledger without these slices; unknown ones are ignored."""
        gone = frozenset(slice_ids)
        return Ledger({key: grant for key, grant in self.grants.items() if key not in gone})

    def of_pod(self, pod: PodRef) -> tuple[Grant, ...]:
        """Grants of a pod: by uid if both have one, else by namespace and name."""
        return tuple(g for g in self.grants.values() if g.pod.is_same_pod(pod))

    def of_container(self, pod: PodRef, container: str) -> Grant | None:
        """The grant of one container, or None."""
        return next((g for g in self.of_pod(pod) if g.container == container), None)

    def holders(self, ids: Iterable[str]) -> tuple[Grant, ...]:
        """Grants that hold any of `ids`."""
        wanted = frozenset(ids)
        return tuple([g for g in self.grants.values() if not wanted.isdisjoint(g.all_ids)])

    def ids(self) -> frozenset[str]:
        """Every unit that is held."""
        return frozenset().union(*(g.all_ids for g in self.grants.values()))

    def rivals(self, pod: PodRef, ids: Iterable[str]) -> tuple[Grant, ...]:
        """Grants of other pods that hold any of `ids`: while one of them lives, `pod` cannot."""
        return tuple(g for g in self.holders(ids) if not g.pod.is_same_pod(pod))

    def unknown(self, held: Iterable[HeldUnits]) -> list[HeldUnits]:
        """Those that no grant has; units reused from an init container belong to the reuser."""
        certain = Ledger({k: g for k, g in self.grants.items() if not g.is_handed_on}).ids()
        return [
            units
            for units in held
            if units.ids
            and certain.isdisjoint(units.ids)
            and all(
                grant.pod.is_same_pod(units.pod) and grant.container != units.container
                for grant in self.holders(units.ids)
            )
        ]

    def before(self, pod: PodRef) -> "Ledger":
        """The ledger as it counts for the next container of `pod`.

        The kubelet lets later containers reuse the units of ordinary init containers, so these
        count as free for the same pod and for no other.
        """
        return Ledger(
            {
                key: grant
                for key, grant in self.grants.items()
                if not (grant.is_handed_on and grant.pod.is_same_pod(pod))
            }
        )
