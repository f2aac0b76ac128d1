"""The ledger: all grants of a node, and what is held of each device, in amounts.

When a grant is over, `grant_lifetime` says. Amounts are of shares, so they count the same for a
holder that has units of the kubelet's, for a claim, and in a controller that knows no units.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.pods import HeldUnits, PodRef
from gpu_device_plugin.domain.shares import Share


@dataclass(frozen=True, slots=True)
class Hold:
    """A share that a pod holds; of one that is handed on, later containers of the pod take."""

    pod: PodRef
    share: Share
    is_handed_on: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """What is held of one device.

    Attributes:
        memory_mib: Memory, as it was asked for.
        core_percent: Compute.
        pods: Pods that hold anything of it.
        is_exclusive: One of them has it for itself.
    """

    memory_mib: int = 0
    core_percent: int = 0
    pods: frozenset[PodRef] = frozenset()
    is_exclusive: bool = False


def used(holds: Iterable[Hold]) -> dict[str, Use]:
    """What is held of each device, by its id.

    Of what ordinary init containers hold, a pod's later containers take first. So of each device a
    pod holds the largest of its init containers' shares, or the sum of the others if that is more.
    """
    by_pod: dict[str, dict[tuple[str, str], list[Hold]]] = {}
    for hold in holds:
        key = hold.pod.key if hold.pod.name else ("", hold.pod.uid)
        by_pod.setdefault(hold.share.device, {}).setdefault(key, []).append(hold)
    return {
        device: Use(
            memory_mib=sum(_most(each, lambda share: share.memory_mib) for each in pods.values()),
            core_percent=sum(
                _most(each, lambda share: share.core_percent) for each in pods.values()
            ),
            pods=frozenset(hold.pod for each in pods.values() for hold in each),
            is_exclusive=any(hold.share.is_exclusive for each in pods.values() for hold in each),
        )
        for device, pods in by_pod.items()
    }


def _most(holds: Sequence[Hold], amount: Callable[[Share], int]) -> int:
    handed_on = max((amount(hold.share) for hold in holds if hold.is_handed_on), default=0)
    return max(handed_on, sum(amount(hold.share) for hold in holds if not hold.is_handed_on))


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
        return tuple(
            g
            for g in self.grants.values()
            if any(not wanted.isdisjoint(held) for held in g.units.values())
        )

    def ids(self) -> frozenset[str]:
        """Every unit that is held."""
        grants = self.grants.values()
        return frozenset().union(*(held for g in grants for held in g.units.values()))

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

    def use(self) -> dict[str, Use]:
        """What is held of each device, by its id."""
        return used(
            Hold(grant.pod, share, grant.is_handed_on)
            for grant in self.grants.values()
            for share in grant.shares
        )
