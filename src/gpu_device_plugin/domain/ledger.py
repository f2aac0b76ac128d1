"""Who holds what on this node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpu_device_plugin.domain.requests import ContainerKind, PodRef
from gpu_device_plugin.domain.units import Resource, cards_of, parse_unit_id


@dataclass(frozen=True, slots=True)
class Grant:
    """A slice held by a container: what was promised, durable before the kubelet hears of it.

    Attributes:
        slice_id: Random id of the slice; names its files on the node.
        pod: Whose it is.
        container: Name of the container.
        kind: Init, sidecar or app.
        index: The container's position in `spec.containers` (or `spec.initContainers`).
        mem_ids: Unit ids of gpu-mem, sorted; empty while only compute has been asked.
        core_ids: Unit ids of gpu-core.percentage, sorted.
        cards: UUIDs of the cards decided on, in order of NVML index at that time.
        mem_units: Memory units decided on, over all cards.
        core_percent: Compute decided on; 0 is no cap.
        pod_units: Memory units of the pod's app containers (`ALIYUN_COM_GPU_MEM_POD`).
        unit_mib: Size of a memory unit in MiB when granted.
        mode: Node mode when granted (`core_mem`, `cgpu`, `share`).
        is_isolated: Whether limits and the library are given to the container.
        is_checked: False while rules that need the pod's text are still to be checked.
        library_version: Version of the isolation library its mounts name; empty without isolation.
        created_seconds: Wall clock when first written.
    """

    slice_id: str
    pod: PodRef
    container: str
    kind: ContainerKind = ContainerKind.APP
    index: int = 0
    mem_ids: tuple[str, ...] = ()
    core_ids: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    mem_units: int = 0
    core_percent: int = 0
    pod_units: int = 0
    unit_mib: int = 1024
    mode: str = "core_mem"
    is_isolated: bool = True
    is_checked: bool = True
    library_version: str = ""
    created_seconds: float = 0.0

    def ids(self, resource: Resource) -> tuple[str, ...]:
        """The unit ids of `resource`; none for gpu-count."""
        return {Resource.MEM: self.mem_ids, Resource.CORE: self.core_ids}.get(resource, ())

    def with_ids(self, resource: Resource, ids: Iterable[str]) -> "Grant":
        """The same grant holding `ids` of `resource`."""
        ordered = tuple(sorted(ids))
        if resource is Resource.MEM:
            return replace(self, mem_ids=ordered)
        return replace(self, core_ids=ordered)

    @property
    def units_per_card(self) -> int:
        """Memory units on each of its cards."""
        return self.mem_units // max(1, len(self.cards))

    @property
    def card_numbers(self) -> frozenset[int]:
        """Numbers of the cards its ids name."""
        return cards_of((*self.mem_ids, *self.core_ids))


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
    """All grants of a node. No unit is held by two pods; a pod's containers may hand units on."""

    grants: Mapping[str, Grant] = field(default_factory=dict)

    def hold(self, grant: Grant) -> "Ledger":
        """The ledger with `grant` added, or put in place of the one with the same slice id."""
        return Ledger({**self.grants, grant.slice_id: grant})

    def release(self, slice_ids: Iterable[str]) -> "Ledger":
        """The ledger without these slices; unknown ones are ignored."""
        gone = frozenset(slice_ids)
        return Ledger({key: grant for key, grant in self.grants.items() if key not in gone})

    def of_pod(self, pod: PodRef) -> tuple[Grant, ...]:
        """Grants of a pod: by uid where both know it, else by namespace and name."""
        return tuple(g for g in self.grants.values() if _is_same_pod(g.pod, pod))

    def of_container(self, pod: PodRef, container: str) -> Grant | None:
        """The grant of one container, or None."""
        return next((g for g in self.of_pod(pod) if g.container == container), None)

    def holders(self, ids: Iterable[str]) -> tuple[Grant, ...]:
        """Grants that hold any of `ids`."""
        wanted = frozenset(ids)
        return tuple(
            g
            for g in self.grants.values()
            if not wanted.isdisjoint(g.mem_ids) or not wanted.isdisjoint(g.core_ids)
        )

    def use(self) -> Mapping[int, CardUse]:
        """What is held of each card, by card number; a unit held twice by one pod counts once."""
        units: dict[int, dict[Resource, set[str]]] = {}
        pods: dict[int, set[PodRef]] = {}
        for grant in self.grants.values():
            for text in (*grant.mem_ids, *grant.core_ids):
                unit = parse_unit_id(text)
                if unit is not None:
                    held = units.setdefault(unit.card, {Resource.MEM: set(), Resource.CORE: set()})
                    held[unit.resource].add(text)
                    pods.setdefault(unit.card, set()).add(grant.pod)
        return {
            card: CardUse(len(held[Resource.MEM]), len(held[Resource.CORE]), frozenset(pods[card]))
            for card, held in units.items()
        }


def _is_same_pod(one: PodRef, other: PodRef) -> bool:
    if one.uid and other.uid:
        return one.uid == other.uid
    return one.is_same_name(other)
