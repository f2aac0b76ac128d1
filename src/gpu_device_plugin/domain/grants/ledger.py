"""The ledger: all grants of a node, and what is held of each device in amounts.

Amounts are of shares, so they count the same for a holder that has units of the kubelet's, for a claim,
and in a controller that knows no units.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gpu_device_plugin.domain.cards.memory_unit import MiB, Units
from gpu_device_plugin.domain.grants.grant import Grant, Hold, Holder, UnitsAndPercent
from gpu_device_plugin.domain.grants.init_containers import NOTHING, take
from gpu_device_plugin.domain.node.pods import PodKey, PodRef


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What is held of one device. Its memory is as it was asked for; one pod may have it for itself."""

    memory_mib: MiB = MiB(0)
    core_percent: int = 0
    pods: tuple[PodRef, ...] = ()
    is_exclusive: bool = False


def sum_holds(holds: Iterable[Hold]) -> dict[str, DeviceUse]:
    """What is held of each device, by its id."""
    # Every decision adds up all grants: plain lists, because objects would cost it half a millisecond.
    by_device: dict[str, dict[object, list[Hold]]] = defaultdict(lambda: defaultdict(list))
    for hold in holds:
        pod = hold.holder.pod
        key = (pod.namespace, pod.name) if pod.name else pod.uid
        by_device[hold.share.device][key].append(hold)
    return {device: _use(by_pod.values()) for device, by_pod in by_device.items()}


def _use(by_pod: Iterable[Sequence[Hold]]) -> DeviceUse:
    mib = percent = 0
    is_exclusive = False
    pods: dict[PodRef, None] = {}
    for held in by_pod:
        taken = _without_reused(held) if len(held) > 1 else held
        for holder, share in taken:
            pods[holder.pod] = None
            mib += share.memory_mib
            percent += share.core_percent
            is_exclusive = is_exclusive or share.is_exclusive
    return DeviceUse(MiB(mib), percent, tuple(pods), is_exclusive)


def _without_reused(held: Sequence[Hold]) -> Iterable[Hold]:
    """What a pod's containers hold of one device, each without what it reuses (init_containers)."""
    reusable = NOTHING
    for holder, share in sorted(held, key=lambda hold: hold.holder.place):
        asked = UnitsAndPercent(Units(share.memory_mib), share.core_percent)  # in units of one MiB
        (mib, percent), reusable = take(holder.kind, asked, reusable)
        yield Hold(holder, replace(share, memory_mib=MiB(mib), core_percent=percent))


@dataclass(frozen=True, slots=True)
class Ledger:
    """All grants of a node. No unit is held by two pods; a pod's containers may reuse units.

    The kubelet can break that rule (#137534). So `hold` does not check it, and the caller that
    is about to grant uses `rivals` to do so.
    """

    grants: Mapping[str, Grant] = field(default_factory=dict)
    _by_pod: dict[str | PodKey, dict[str, list[Grant]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """By a pod's uid, and by its namespace and name; then by container."""

    def hold(self, grant: Grant) -> "Ledger":
        """The ledger with `grant` added, or replacing the one with the same slice id."""
        return Ledger({**self.grants, grant.slice_id: grant})

    def release(self, slice_ids: Iterable[str]) -> "Ledger":
        """The ledger without these slices; unknown ones are ignored, and without any it stays the same."""
        gone = self.grants.keys() & slice_ids
        if not gone:
            return self
        return Ledger({key: grant for key, grant in self.grants.items() if key not in gone})

    def of_container(self, pod: PodRef, container: str) -> Grant | None:
        return next(iter(self.of_pod(pod, container)), None)

    def of_pod(self, pod: PodRef, *container: str) -> tuple[Grant, ...]:
        """Grants of a pod, or of one container: by uid if both have one, else by namespace and name."""
        if not self._by_pod:
            for grant in self.grants.values():
                of = grant.holder.pod
                for place in (of.key, of.uid) if of.uid else (of.key,):
                    parts = self._by_pod.setdefault(place, {})
                    parts.setdefault(grant.container, []).append(grant)
        grants = [
            grant
            for parts in (self._by_pod.get(pod.uid, {}), self._by_pod.get(pod.key, {}))
            for name in container or parts
            for grant in parts.get(name, ())
        ]
        return tuple({g.slice_id: g for g in grants if g.pod.is_same_pod(pod)}.values())

    def of_holder(self, holder: Holder) -> tuple[Grant, ...]:
        return tuple(g for g in self.grants.values() if g.holder.is_same(holder))

    def holders(self, ids: Iterable[str]) -> tuple[Grant, ...]:
        wanted = frozenset(ids)
        return tuple([g for g in self.grants.values() if not wanted.isdisjoint(g.all_ids)])

    def ids(self) -> frozenset[str]:
        return frozenset().union(*(g.all_ids for g in self.grants.values()))

    def extra_ids(self) -> frozenset[str]:
        """Units that slices have beyond their requests."""
        return frozenset().union(*(g.extra_ids for g in self.grants.values() if g.resized))

    def rivals(self, pod: PodRef, ids: Iterable[str]) -> tuple[Grant, ...]:
        """Grants of other pods that hold any of `ids`: while one of them lives, `pod` cannot."""
        return tuple(g for g in self.holders(ids) if not g.pod.is_same_pod(pod))

    def before(self, pod: PodRef) -> "Ledger":
        """The ledger as it counts for the next container of `pod`, which reuses what is handed on."""
        gone = [
            key
            for key, grant in self.grants.items()
            if grant.holder.is_handed_on and grant.pod.is_same_pod(pod)
        ]
        return self.release(gone)

    def use(self) -> dict[str, DeviceUse]:
        """What is held of each device, by its id."""
        return sum_holds(chain.from_iterable([grant.holds for grant in self.grants.values()]))

    def use_by_claims(self) -> dict[str, DeviceUse]:
        """What prepared claims hold of each device, by its id."""
        by_claims = (grant.holds for grant in self.grants.values() if grant.holder.claim)
        return sum_holds(chain.from_iterable(by_claims))
