"""The ledger: all grants of a node, and what is held of each device in amounts.

Amounts are of shares, so they count the same for a holder that has units of the kubelet's, for a claim,
and in a controller that knows no units.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from gpu_device_plugin.domain.cards.memory_unit import MiB
from gpu_device_plugin.domain.grants.grant import Grant, Hold, Holder
from gpu_device_plugin.domain.node.pods import PodKey, PodRef


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What is held of one device. Its memory is as it was asked for; one pod may have it for itself."""

    memory_mib: MiB = MiB(0)
    core_percent: int = 0
    pods: tuple[PodRef, ...] = ()
    is_exclusive: bool = False


def sum_holds(holds: Iterable[Hold]) -> dict[str, DeviceUse]:
    """What is held of each device, by its id.

    What ordinary init containers hold is reused (init_containers). So of each device a pod holds the
    largest of its init containers' shares, or the sum of the others if that is more.
    """
    # Every decision adds up all grants: plain lists, because objects would cost it half a millisecond.
    by_device: dict[str, dict[object, list[int]]] = {}
    pods: dict[str, dict[PodRef, None]] = {}
    exclusive: set[str] = set()
    for pod, share, is_handed_on in holds:
        device = share.device
        parts = by_device.get(device)
        if parts is None:
            parts = by_device[device] = {}
            pods[device] = {}
        key = (pod.namespace, pod.name) if pod.name else pod.uid
        part = parts.get(key)
        if part is None:
            part = parts[key] = [0, 0, 0, 0]
        pods[device][pod] = None
        if share.is_exclusive:
            exclusive.add(device)
        if is_handed_on:
            part[0], part[1] = max(part[0], share.memory_mib), max(part[1], share.core_percent)
        else:
            part[2] += share.memory_mib
            part[3] += share.core_percent
    return {
        device: DeviceUse(
            memory_mib=MiB(sum([max(part[0], part[2]) for part in parts.values()])),
            core_percent=sum([max(part[1], part[3]) for part in parts.values()]),
            pods=tuple(pods[device]),
            is_exclusive=device in exclusive,
        )
        for device, parts in by_device.items()
    }


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
        """The grant of one container, or None."""
        return next(iter(self.of_pod(pod, container)), None)

    def of_pod(self, pod: PodRef, *container: str) -> tuple[Grant, ...]:
        """Grants of a pod, or of one container: by uid if both have one, else by namespace and name."""
        if not self._by_pod:
            for grant in self.grants.values():
                of = grant.holder.pod
                for place in (of.key, of.uid) if of.uid else (of.key,):
                    parts = self._by_pod.setdefault(place, {})
                    parts.setdefault(grant.container, []).append(grant)
        found = [
            grant
            for parts in (self._by_pod.get(pod.uid, {}), self._by_pod.get(pod.key, {}))
            for name in container or parts
            for grant in parts.get(name, ())
        ]
        return tuple({g.slice_id: g for g in found if g.pod.is_same_pod(pod)}.values())

    def of_holder(self, holder: Holder) -> tuple[Grant, ...]:
        """Grants of a container or claim."""
        return tuple(g for g in self.grants.values() if g.holder.is_same(holder))

    def holders(self, ids: Iterable[str]) -> tuple[Grant, ...]:
        """Grants that hold any of `ids`."""
        wanted = frozenset(ids)
        return tuple([g for g in self.grants.values() if not wanted.isdisjoint(g.all_ids)])

    def ids(self) -> frozenset[str]:
        return frozenset().union(*(g.all_ids for g in self.grants.values()))

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
