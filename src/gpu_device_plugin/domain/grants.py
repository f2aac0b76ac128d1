"""A grant: what one container or claim holds of the node's devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from gpu_device_plugin.domain.compute_policy import ComputePolicy
from gpu_device_plugin.domain.pods import ContainerKind, PodRef
from gpu_device_plugin.domain.shares import Hold, Holder, Share


@dataclass(frozen=True, slots=True)
class Grant:
    """Shares of devices, given to a holder.

    Attributes:
        units: Resource -> the ids of its units, sorted; without the resources not asked for yet.
        shares: Its parts of devices, in order of NVML index when it was given.
        own: What only its scheme knows of it; the scheme keeps, writes and reads it.
        compute_policy: What its compute means while nobody else works; the same while it lasts.
        is_isolated: Whether the container gets limits and the library.
        is_checked: False while rules that need the pod spec still have to be checked.
        library_version: Version of the isolation library its mounts name; empty without isolation.
        holds: Its shares as the ledger adds them up.
    """

    slice_id: str
    holder: Holder
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shares: tuple[Share, ...] = ()
    own: object = None
    compute_policy: ComputePolicy = ComputePolicy.FIXED
    is_isolated: bool = True
    is_checked: bool = True
    library_version: str = ""
    created_seconds: float = 0.0
    holds: tuple[Hold, ...] = field(init=False, repr=False, compare=False)
    all_ids: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """A resource of which nothing is held is left out, so that equal grants are equal."""
        # Kept: every admission looks for units in all grants, several times.
        object.__setattr__(self, "all_ids", frozenset(chain.from_iterable(self.units.values())))
        if not all(self.units.values()):
            held = {resource: ids for resource, ids in self.units.items() if ids}
            object.__setattr__(self, "units", held)
        pod, is_handed_on = self.holder.pod, self.holder.is_handed_on
        holds = tuple(Hold(pod, share, is_handed_on) for share in self.shares)
        object.__setattr__(self, "holds", holds)

    @property
    def pod(self) -> PodRef:
        """Whose it is."""
        return self.holder.pod

    @property
    def container(self) -> str:
        """Name of the container; empty while it is not known."""
        return self.holder.container

    @property
    def kind(self) -> ContainerKind:
        """Init, sidecar or app."""
        return self.holder.kind

    @property
    def index(self) -> int:
        """The container's position in `spec.containers` (or `spec.initContainers`)."""
        return self.holder.index

    @property
    def devices(self) -> tuple[str, ...]:
        """Ids of the devices of which it holds a share."""
        return tuple(share.device for share in self.shares)

    @property
    def is_sized(self) -> bool:
        """Whether the memory of each of its shares is known."""
        return all(share.memory_bytes is not None for share in self.shares)

    @property
    def core_percent(self) -> int:
        """Compute on each of its devices; 0 is no cap."""
        return max((share.core_percent for share in self.shares), default=0)

    def ids(self, resource: str) -> tuple[str, ...]:
        """The unit ids of `resource` that it holds."""
        return self.units.get(resource, ())

    def with_ids(self, resource: str, ids: Iterable[str]) -> "Grant":
        """The same grant holding `ids` of `resource`."""
        return replace(self, units={**self.units, resource: tuple(sorted(ids))})

    @property
    def is_handed_on(self) -> bool:
        """Whether later containers of the pod reuse its units: an ordinary init container's."""
        return self.holder.is_handed_on
