"""The ledger: all grants of a node, and when a grant is over."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from gpu_device_plugin.domain.adoption import HeldUnits, adopt
from gpu_device_plugin.domain.grants import Grant
from gpu_device_plugin.domain.pods import ListedPod, PodRef, PodRequest
from gpu_device_plugin.domain.units import Resource, parse_unit_id

__all__ = [
    "CardUse",
    "Grant",
    "HeldUnits",
    "Ledger",
    "adopt",
    "drift",
    "is_over",
    "live",
    "survivors",
]

_Places: TypeAlias = dict[tuple[str, str, str, str], frozenset[str]]

ABSENT_SECONDS = 30.0
"""A grant ends when the kubelet lacks it twice, at least this long apart."""
KUBELET_SETTLE_SECONDS = 60.0
"""For this long after kubelet.sock appeared List may be incomplete: its sources are not ready."""


@dataclass(frozen=True, slots=True)
class CardUse:
    """What is held of one card.

    Attributes:
        mem_units: Distinct memory units held.
        core_percent: Distinct compute units held.
        pods: Pods that hold anything on it.
    """

    mem_units: int = 0
    core_percent: int = 0
    pods: frozenset[PodRef] = frozenset()


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

    def use(self) -> Mapping[int, CardUse]:
        """What is held of each card, by card number; a unit held twice by one pod counts once."""
        units: dict[int, dict[Resource, set[str]]] = {}
        pods: dict[int, set[PodRef]] = {}
        for grant in self.grants.values():
            for ids in grant.units.values():
                for card, resource, texts in _by_card(ids):
                    held = units.setdefault(card, {Resource.MEM: set(), Resource.CORE: set()})
                    held[resource].update(texts)
                    pods.setdefault(card, set()).add(grant.pod)
        return {
            card: CardUse(len(held[Resource.MEM]), len(held[Resource.CORE]), frozenset(pods[card]))
            for card, held in units.items()
        }


# Every decision adds up all grants, and few of them have changed since the last.
@lru_cache(maxsize=1024)
def _by_card(ids: tuple[str, ...]) -> tuple[tuple[int, Resource, tuple[str, ...]], ...]:
    """These ids by card and resource."""
    found: dict[tuple[int, Resource], list[str]] = {}
    for text in ids:
        unit = parse_unit_id(text)
        if unit is not None:
            found.setdefault((unit.card, unit.resource), []).append(text)
    return tuple((*key, tuple(texts)) for key, texts in found.items())


def live(
    ledger: Ledger,
    listed: Collection[tuple[str, str]],
    uids: Mapping[tuple[str, str], str] | None = None,
    ended: Collection[str] = (),
) -> Ledger:
    """The grants whose pods the kubelet still has; at admission the others count as free.

    Args:
        ledger: All grants.
        listed: Namespace and name of every pod in PodResources List.
        uids: What the API knows of these names now; a grant under another uid belongs to a
            pod that has been replaced by one of the same name.
        ended: Uids of pods that have finished, as the API knows: kubelets before 1.34 list these
            until they are deleted, and give their units away all the same.
    """
    return Ledger(
        {
            key: grant
            for key, grant in ledger.grants.items()
            if grant.pod.uid not in ended and _is_listed(grant.pod, listed, uids or {})
        }
    )


def is_over(pod: PodRef, specs: Mapping[tuple[str, str], PodRequest]) -> bool:
    """Whether a pod has ended or is gone, according to the API's pods of this node.

    Args:
        pod: The pod of a grant.
        specs: Every pod of the node, by namespace and name.
    """
    spec = specs.get(pod.key)
    return spec is None or spec.is_finished or not spec.ref.is_same_pod(pod)


def survivors(  # noqa: PLR0913, PLR0917 - all of them have to agree before a grant ends
    ledger: Ledger,
    listed: Collection[tuple[str, str]],
    checkpoint_uids: Collection[str] | None,
    absent_since: Mapping[str, float],
    now: float,
    kubelet_since: float | None,
    uids: Mapping[tuple[str, str], str] | None = None,
) -> tuple[frozenset[str], Mapping[str, float]]:
    """Which grants are over, and since when the pods of others have been missing.

    A grant ends only when List and the kubelet's checkpoint both lack its pod twice, 30 s apart,
    and an absence counts only later than 60 s after kubelet.sock appeared.

    Args:
        ledger: All grants.
        listed: Namespace and name of every pod in PodResources List.
        checkpoint_uids: Every pod uid in the kubelet's checkpoint; None where it has none.
        absent_since: Second result of the last pass; empty at the first.
        now: Monotonic clock, seconds.
        kubelet_since: The same clock when kubelet.sock appeared; None while it is away.
        uids: See `live`.

    Returns:
        Slice ids to release, and slice id -> `now` of the first pass that lacked it.
    """
    is_settled = kubelet_since is not None and now - kubelet_since >= KUBELET_SETTLE_SECONDS
    if checkpoint_uids is None or not is_settled:
        return frozenset(), {}
    absent = {
        key: min(absent_since.get(key, now), now)
        for key, grant in ledger.grants.items()
        if grant.pod.uid not in checkpoint_uids
        and not (grant.pod.name and _is_listed(grant.pod, listed, uids or {}))
    }
    over = frozenset(key for key, since in absent.items() if now - since >= ABSENT_SECONDS)
    return over, {key: since for key, since in absent.items() if key not in over}


def drift(ledger: Ledger, listed: Iterable[ListedPod]) -> int:
    """In how many places our grants and the kubelet's List differ; 0 is good.

    A place is one resource of one container. Ordinary init containers are left out, because
    List never shows them, and gpu-count, because it is never granted.
    """
    theirs: _Places = {
        (*entry.pod.key, container, resource): ids
        for entry in listed
        for container, held in entry.held.items()
        for resource, ids in held.items()
        if ids and resource != Resource.COUNT
    }
    ours: _Places = {
        (*grant.pod.key, grant.container, resource): frozenset(grant.ids(resource))
        for grant in ledger.grants.values()
        for resource in grant.units
        if not grant.is_handed_on
    }
    return sum(ours.get(place) != theirs.get(place) for place in ours.keys() | theirs.keys())


def _is_listed(
    pod: PodRef, listed: Collection[tuple[str, str]], uids: Mapping[tuple[str, str], str]
) -> bool:
    """Whether List has the pod; one known only by its uid counts as listed."""
    if not pod.name:
        return True
    return pod.key in listed and (not pod.uid or uids.get(pod.key, pod.uid) == pod.uid)
