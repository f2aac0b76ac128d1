"""A grant: the slice that one container holds, and its plain form on disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from gpu_device_plugin.domain.modes import NodeMode, is_isolated, parse_mode
from gpu_device_plugin.domain.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.units import MemoryUnit, Resource, cards_of, parse_unit_id
from gpu_device_plugin.errors import StateError


@dataclass(frozen=True, slots=True)
class Grant:
    """A slice held by a container: what was promised, durable before the kubelet hears of it.

    Attributes:
        slice_id: Random id of the slice; names its files on the node.
        pod: Whose it is.
        container: Name of the container; empty while nobody knows it.
        kind: Init, sidecar or app.
        index: The container's position in `spec.containers` (or `spec.initContainers`).
        mem_ids: Unit ids of gpu-mem, sorted; empty while only compute has been asked.
        core_ids: Unit ids of gpu-core.percentage, sorted.
        cards: UUIDs of the cards decided on, in order of NVML index at that time.
        card_bytes: Memory of the slice on each of `cards`, in bytes; empty while nobody knows.
            A card may show less later (ECC, another driver): what was promised stays.
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
    card_bytes: tuple[int, ...] = ()
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
        match resource:
            case Resource.MEM:
                return self.mem_ids
            case Resource.CORE:
                return self.core_ids
            case Resource.COUNT:
                return ()

    def with_ids(self, resource: Resource, ids: Iterable[str]) -> "Grant":
        """The same grant holding `ids` of `resource`."""
        ordered = tuple(sorted(ids))
        if resource is Resource.MEM:
            return replace(self, mem_ids=ordered)
        return replace(self, core_ids=ordered)

    @property
    def is_handed_on(self) -> bool:
        """Whether later containers of the pod may take over its units: ordinary init's only."""
        return self.kind is ContainerKind.INIT

    @property
    def is_capped(self) -> bool:
        """Whether the container gets limits and the library: never in mode `share`."""
        return self.is_isolated and is_isolated(NodeMode(self.mode))

    @property
    def is_bare(self) -> bool:
        """Whether the container goes without a cap though its mode has one."""
        return not self.is_isolated and is_isolated(NodeMode(self.mode))

    @property
    def units_per_card(self) -> int:
        """Memory units on each of its cards."""
        return self.mem_units // max(1, len(self.cards))

    @property
    def card_numbers(self) -> frozenset[int]:
        """Numbers of the cards its ids name."""
        return cards_of((*self.mem_ids, *self.core_ids))


_PLAIN_TYPES: Mapping[str, type] = {
    "slice_id": str,
    "container": str,
    "index": int,
    "mem_units": int,
    "core_percent": int,
    "pod_units": int,
    "unit_mib": int,
    "mode": str,
    "is_isolated": bool,
    "is_checked": bool,
    "library_version": str,
}
_LISTS = ("mem_ids", "core_ids", "cards", "card_bytes")


def grant_to_plain(grant: Grant) -> dict[str, object]:
    """The grant as texts, numbers, lists and dicts, ready for JSON."""
    plain: dict[str, object] = {name: getattr(grant, name) for name in _PLAIN_TYPES}
    plain |= {name: list(getattr(grant, name)) for name in _LISTS}
    plain["pod"] = [grant.pod.namespace, grant.pod.name, grant.pod.uid]
    plain["kind"] = grant.kind.value
    plain["created_seconds"] = grant.created_seconds
    return plain


def grant_from_plain(plain: object) -> Grant:
    """The grant that `grant_to_plain` made `plain` from.

    Raises:
        StateError: A key is missing or foreign, or a value is of the wrong kind; the text names it.
    """
    if not isinstance(plain, dict):
        raise StateError(f"a grant is a mapping, not {type(plain).__name__}")
    names = {field.name for field in fields(Grant)}
    if plain.keys() != names:
        odd = ", ".join(sorted(map(str, plain.keys() ^ names)))
        raise StateError(f"a grant has other keys than this version writes: {odd}")
    for name, kind in _PLAIN_TYPES.items():
        if type(plain[name]) is not kind:
            raise StateError(f"grant key {name} is {plain[name]!r}, not {kind.__name__}")
    if parse_mode(plain["mode"]) is None:
        raise StateError(f"grant key mode is {plain['mode']!r}, which is no node mode")
    MemoryUnit.of_mib(plain["unit_mib"])  # raises, and names the key
    slice_id: str = plain["slice_id"]
    if not slice_id or "/" in slice_id or slice_id.startswith("."):
        raise StateError(f"grant key slice_id is {slice_id!r}, which names no file")
    return Grant(
        **{name: plain[name] for name in _PLAIN_TYPES},
        mem_ids=_ids(plain, "mem_ids", Resource.MEM),
        core_ids=_ids(plain, "core_ids", Resource.CORE),
        cards=_texts(plain, "cards"),
        card_bytes=_sizes(plain["card_bytes"]),
        pod=_pod(plain["pod"]),
        kind=_kind(plain["kind"]),
        created_seconds=_seconds(plain["created_seconds"]),
    )


def _texts(plain: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = plain[name]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise StateError(f"grant key {name} is {value!r}, not a list of texts")
    return tuple(value)


def _ids(plain: Mapping[str, object], name: str, resource: Resource) -> tuple[str, ...]:
    ids = _texts(plain, name)
    for text in ids:
        unit = parse_unit_id(text)
        if unit is None or unit.resource is not resource:
            raise StateError(f"grant key {name} has {text!r}, which is no unit of {resource}")
    return ids


def _sizes(value: object) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(size) is int and size >= 0 for size in value):
        return tuple(value)
    raise StateError(f"grant key card_bytes is {value!r}, not a list of sizes")


def _pod(value: object) -> PodRef:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(t, str) for t in value):
        return PodRef(*value)
    raise StateError(f"grant key pod is {value!r}, not [namespace, name, uid]")


def _kind(value: object) -> ContainerKind:
    for kind in ContainerKind:
        if kind.value == value:
            return kind
    raise StateError(f"grant key kind is {value!r}, not init, sidecar or app")


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise StateError(f"grant key created_seconds is {value!r}, not a number")
